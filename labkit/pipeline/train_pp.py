"""A small GPT on real text, trained in a pipeline: `labkit.train.train_serial` on many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.comm import Group
from labkit.data import Batch, Corpus, counted
from labkit.model import GPTConfig
from labkit.optimizer import Optimizer
from labkit.pipeline.execute import Pipeline
from labkit.pipeline.gpt_pp import PipelineGPT, gather_full_state
from labkit.pipeline.op import Row, Schedule, plan
from labkit.pipeline.schedules import one_f_one_b
from labkit.pipeline.work import WeightedLoss
from labkit.train import TrainConfig, Trained, fit


def train(
    group: Group,
    config: GPTConfig,
    settings: TrainConfig,
    row: Row = one_f_one_b,
    num_microbatches: int = 4,
    corpus: Corpus | None = None,
    layers: Sequence[range] | None = None,
) -> Trained:
    """`labkit.train.train_serial` on the ranks of `group`: run(train, 4, args=(config, settings)).

    row: a schedule, such as gpipe or partial(interleaved, virtual=2). layers: by stage, as for
    PipelineGPT. Every rank returns the losses and the whole parameters; both equal the serial ones
    up to rounding. None: Python's standard library is the corpus.
    """
    schedule = plan(row, group.size, num_microbatches)
    model = PipelineGPT(config, schedule, group.rank, settings.seed, settings.dtype, layers)
    model.to(group.device)
    pipeline = Pipeline(schedule, model.stages, token_loss, group, tied=model.tied)
    optimizer = settings.make_optimizer(model.parameters())
    losses = fit(partial(train_step, pipeline, optimizer), config, settings, corpus)
    state = {name: parameter.cpu() for name, parameter in gather_full_state(model, group).items()}
    return Trained(losses_everywhere(losses, schedule, group).tolist(), state)


def train_step(pipeline: Pipeline, optimizer: Optimizer, batch: Batch) -> float | None:
    """One step on a batch, the same on every rank; the loss before it, where the last stage is.

    The timeline names the phases.
    """
    optimizer.zero_grad()
    step = pipeline.step(batch.inputs_BT, batch.targets_BT)
    with pipeline.group.region("optimizer"):
        optimizer.step()
    return step.loss


def losses_everywhere(losses: Sequence[float | None], schedule: Schedule, group: Group) -> Tensor:
    """The losses of the last stage, float64, on every rank. Wire: a broadcast."""
    known = torch.tensor([each or 0.0 for each in losses], dtype=torch.float64)
    return group.broadcast(known.to(group.device), schedule.rank_of[schedule.num_stages - 1])


def _mean_over_tokens(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The mean cross-entropy of the next token, in nats: one number; 0 where no target counts."""
    total = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum")
    return total / counted(targets_BT).sum().clamp(min=1)


def num_counted(targets_BT: Tensor) -> int:
    """How many targets are not IGNORED: the weight of a microbatch."""
    return int(counted(targets_BT).sum())


token_loss = WeightedLoss(_mean_over_tokens, num_counted)
"""The mean cross-entropy of the next token over the targets of a batch that are not IGNORED."""
