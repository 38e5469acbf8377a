"""A small GPT on real text, trained data-parallel: `labkit.train.train_serial` on many ranks."""

from collections.abc import Callable
from functools import partial

from labkit.comm import Group
from labkit.data import Batch, Corpus
from labkit.data_parallel.naive import NaiveDDP, Replica
from labkit.data_parallel.reduction import AllReduce, library_all_reduce
from labkit.model import GPT, GPTConfig
from labkit.optimizer import Optimizer
from labkit.train import TrainConfig, Trained, copy_parameters, fit, loss, summed_losses


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    all_reduce: AllReduce = library_all_reduce,
    strategy: Callable[..., Replica] = NaiveDDP,
) -> Trained:
    """`labkit.train.train_serial` on the ranks of `world`: run(train, 4, args=(config, settings)).

    Every rank returns the losses over the global batch and the parameters; both equal the serial
    ones up to rounding. None: Python's standard library is the corpus. TypeError for a strategy
    that is none.
    """
    if not callable(strategy):
        raise TypeError(f"strategy={strategy!r:.80}: give NaiveDDP, BucketedDDP or DDP")
    module = GPT(config, settings.seed, settings.dtype).to(world.device)
    model = strategy(module, world, all_reduce)
    optimizer = settings.make_optimizer(module.parameters())
    parts = fit(partial(train_step, model, optimizer), config, settings, corpus)
    return Trained(summed_losses(parts, world), copy_parameters(module))


def train_step(model: Replica, optimizer: Optimizer, batch: Batch) -> float:
    """One step on this rank's share of a global batch; its part of the global loss.

    The parts of all ranks add up to the loss. The timeline names the phases.
    """
    group = model.group
    share = batch.share(group.rank, group.size)
    part = share.num_targets / max(1, batch.num_targets)
    share = share.to(group.device)
    optimizer.zero_grad()
    with group.region("forward"):
        value = loss(model, share)
    with group.region("backward"):
        # The mean over the ranks counts all alike. A rank with more targets counts more.
        (value * (part * group.size)).backward()
    with group.region("reduce"):
        model.reduce_gradients()
    with group.region("optimizer"):
        optimizer.step()
    return value.item() * part
