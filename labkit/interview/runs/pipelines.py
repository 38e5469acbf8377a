"""Pipelines on four real ranks: what their stages hold, counted there. Simulated: simulated.py."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import Group
from labkit.interview.runs.real_run import real_run, run
from labkit.memory import Meter
from labkit.model import GPTConfig
from labkit.optimizer import SGD
from labkit.pipeline import (
    PipeDream,
    Pipeline,
    PipelineGPT,
    gpipe,
    one_f_one_b,
    plan,
    token_loss,
)

_RANKS, _MICROBATCHES = 4, 8
_ORDERS = {"gpipe": gpipe, "1f1b": one_f_one_b}
_CONFIG = GPTConfig(vocab=64, context=64, num_layers=6, hidden=64)


@real_run
def microbatches_held(schedule: str) -> list[float]:
    """By rank, the peak of activations in one step of 8 microbatches, over that of one alone.

    schedule: "gpipe" or "1f1b". The peak is that of labkit.memory's meter.
    """
    return [of_rank[schedule] for of_rank in _peaks()]


@real_run
def versions_alive(stage: int) -> int:
    """PipeDream, 16 microbatches: the most versions of a stage's weights held at once."""
    return run(_pipedream, _RANKS).values[stage]


@real_run
def summed_over_mean_gradient() -> float:
    """A stage's gradient, four microbatches' own mean losses added up, over the batch's one."""
    right, wrong = (run(_gradient, 2, args=(times,)).values[0] for times in (1, 4))
    return wrong / right


@cache
def _peaks() -> list[dict[str, float]]:
    return run(_peaks_of_rank, _RANKS).values


def _peaks_of_rank(world: Group) -> dict[str, float]:
    one = _peak_bytes(world, "gpipe", 1)
    return {name: _peak_bytes(world, name, _MICROBATCHES) / one for name in _ORDERS}


def _peak_bytes(world: Group, name: str, num_microbatches: int) -> int:
    schedule = plan(_ORDERS[name], world.size, num_microbatches)
    model = PipelineGPT(_CONFIG, schedule, world.rank)
    pipeline = Pipeline(schedule, model.stages, token_loss, world, tied=model.tied)
    tokens = torch.zeros(2 * num_microbatches, _CONFIG.context, dtype=torch.int64)
    with Meter(model) as meter:
        pipeline.step(tokens, tokens)
    return max(meter.usage.bytes_of["activations"])


def _pipedream(world: Group) -> int:
    torch.manual_seed(0)
    schedule = plan(one_f_one_b, world.size, 2 * _MICROBATCHES)
    stages = {world.rank: nn.Linear(8, 8)}
    pipeline = PipeDream(schedule, stages, F.mse_loss, lambda p: SGD(p, 0.01), world)
    x = torch.randn(schedule.num_microbatches, 8)
    pipeline.step(x, x)
    return pipeline.num_versions[world.rank]


def _gradient(world: Group, times: float) -> float:
    """times: 4 undoes the weight, a quarter, that Pipeline gives each of four losses."""
    torch.manual_seed(0)
    schedule = plan(one_f_one_b, world.size, 4)
    stages = {world.rank: nn.Linear(4, 4)}

    def loss(y: Tensor, targets: Tensor) -> Tensor:
        return times * F.mse_loss(y, targets)

    Pipeline(schedule, stages, loss, world).step(torch.ones(8, 4), torch.zeros(8, 4))
    gradient = stages[world.rank].weight.grad
    assert gradient is not None
    return gradient.norm().item()
