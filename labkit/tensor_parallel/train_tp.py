"""A small GPT on real text, trained tensor-parallel: `labkit.train.train_serial` on many ranks."""

from __future__ import annotations

from functools import partial

from labkit.collectives.wire import Wire
from labkit.comm import Group
from labkit.data import Batch, Corpus
from labkit.model import GPT, GPTConfig
from labkit.optimizer import Optimizer
from labkit.tensor_parallel.full_state import gather_full_state
from labkit.tensor_parallel.gpt_tp import TensorParallelGPT, parallelize
from labkit.train import TrainConfig, Trained, fit, require_configs


def train(
    group: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    *,
    sequence_parallel: bool = False,
    wire: Wire | None = None,
) -> Trained:
    """`labkit.train.train_serial` on the ranks of `group`: run(train, 4, args=(config, settings)).

    Every rank sees every batch, returns the losses and the whole parameters; both equal the serial
    ones up to rounding. None: Python's standard library is the corpus.
    """
    require_configs(config, settings)
    whole = GPT(config, settings.seed, settings.dtype).to(group.device)
    model = parallelize(whole, group, sequence_parallel=sequence_parallel, wire=wire)
    optimizer = settings.make_optimizer(model.parameters())
    losses = fit(partial(train_step, model, optimizer), config, settings, corpus)
    state = gather_full_state(model)
    names = [name for name, _ in model.named_parameters()]
    return Trained(losses, {name: state[name].cpu() for name in names})


def train_step(model: TensorParallelGPT, optimizer: Optimizer, batch: Batch) -> float:
    """One step on a batch, the same on every rank; the loss before it.

    The timeline names the phases.
    """
    group = model.group
    batch = batch.to(group.device)
    optimizer.zero_grad()
    with group.region("forward"):
        value = model.loss(batch)
    with group.region("backward"):
        value.backward()
    with group.region("optimizer"):
        optimizer.step()
    return value.item()
