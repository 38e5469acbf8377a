"""Layers that take a given time, and a small training on them with each strategy, recorded.

    data | forward | backward, gradients are reduced meanwhile | optimizer | next step

Four ranks that compute do not run at once on two cores, so one would measure the machine. A rank
that waits needs no core. A `Wait` spends its time in an operator, `labkit::wait`, which a profiler
shows like any operator that computes. The layers around it have real parameters, real gradients and
real messages; the strategies are the lab's own:

    ddp      DDP, a bucket per layer              tp    ColumnLinear, RowLinear: the time of a rank
    zero3    FullyShardedModule, a unit per layer pp    1F1B, a stage per rank, ROWS microbatches
    moe      ExpertParallelMoE, an expert per rank; the router is balanced

A healthy rank is busy for `STEP_S` in each step; a fault's size is best given as a share of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from labkit.collectives.wire import LIBRARY
from labkit.comm import Group
from labkit.data_parallel import DDP
from labkit.gpt_config import GPTConfig
from labkit.inject.slow import Fault, compute, faults
from labkit.launch import run
from labkit.moe.moe_config import MoEConfig
from labkit.moe.moe_layer import ExpertParallelMoE
from labkit.pipeline import Pipeline, one_f_one_b, plan
from labkit.profile import Trace, read, recording
from labkit.tensor_parallel import ColumnLinear, RowLinear
from labkit.zero import FullyShardedModule

LAYERS, ROWS, WIDTH = 5, 10, 64
ROW_S = 0.0005
"""A row's forward through one layer, in seconds. Backward takes twice that."""
STEP_S = 3 * LAYERS * ROWS * ROW_S
Step = Callable[[Tensor], Any]
"""Forward and backward of a batch (ROWS, WIDTH)."""


class Wait(nn.Module):
    """x (B, ...) -> the same: forward takes `row_s` for each row, and backward twice that."""

    def __init__(self, row_s: float = ROW_S) -> None:
        super().__init__()
        self.row_s = row_s

    def forward(self, x: Tensor) -> Tensor:
        """x, after its time."""
        waited: Tensor = _Takes.apply(x, self.row_s * len(x))
        return waited


class _Takes(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, seconds: float) -> Tensor:
        context.seconds = seconds
        compute(seconds)
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        compute(2 * context.seconds)
        return gradients[0], None


def timed_layer(row_s: float = ROW_S) -> nn.Sequential:
    """A linear layer (B, WIDTH) -> (B, WIDTH) that takes its time."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Wait(row_s))


def _stack() -> nn.Sequential:
    return nn.Sequential(*(timed_layer() for _ in range(LAYERS)))


def _plain(model: nn.Module) -> tuple[nn.Module, Step]:
    return model, lambda batch: model(batch).sum().backward()


def _ddp(world: Group) -> tuple[nn.Module, Step]:
    return _plain(DDP(_stack(), world, bucket_bytes=4 * WIDTH * (WIDTH + 1)))


def _zero3(world: Group) -> tuple[nn.Module, Step]:
    return _plain(FullyShardedModule(_stack(), world, wire=LIBRARY))


def _tp(world: Group) -> tuple[nn.Module, Step]:
    layers = [
        (ColumnLinear(nn.Linear(WIDTH, WIDTH), world), RowLinear(nn.Linear(WIDTH, WIDTH), world))
        for _ in range(LAYERS)
    ]
    return _plain(nn.Sequential(*(nn.Sequential(*pair, Wait()) for pair in layers)))


def _pp(world: Group) -> tuple[nn.Module, Step]:
    stage = nn.Sequential(timed_layer((LAYERS - 1) * ROW_S), timed_layer())
    schedule = plan(one_f_one_b, world.size, ROWS)
    pipeline = Pipeline(schedule, {world.rank: stage}, lambda y, _: y.sum(), world)
    return stage, lambda batch: pipeline.step(batch, batch)


class _TimedExperts(nn.Module):
    """x_ND -> x_ND: a token's number modulo E, in its first features, is its expert."""

    def __init__(self, world: Group) -> None:
        super().__init__()
        config = GPTConfig(hidden=WIDTH, ffn=WIDTH, num_heads=1)
        moe = MoEConfig(num_experts=world.size, top_k=1, weights="of_all")
        self.moe = ExpertParallelMoE(config, moe, world)
        for name, expert in self.moe.experts.items():
            self.moe.experts[name] = nn.Sequential(expert, Wait())
        with torch.no_grad():
            self.moe.router.gate.weight.copy_(10 * torch.eye(world.size, WIDTH))

    def forward(self, x_ND: Tensor) -> Tensor:
        """The tokens, with what their experts add."""
        return x_ND + 0.01 * self.moe(x_ND[None])[0][0]


def _moe(world: Group) -> tuple[nn.Module, Step]:
    model = nn.Sequential(*(_TimedExperts(world) for _ in range(LAYERS)))
    turn = torch.arange(ROWS) + ROWS * world.rank
    by_turn = torch.eye(world.size, WIDTH)[turn % world.size]
    return model, lambda batch: model((batch + by_turn).requires_grad_()).sum().backward()


STRATEGIES = {"ddp": _ddp, "zero3": _zero3, "tp": _tp, "pp": _pp, "moe": _moe}


def timed_training(
    world: Group,
    folder: str | Path,
    chosen: tuple[Fault, ...] = (),
    num_steps: int = 6,
    strategy: str = "ddp",
) -> None:
    """Train with these faults, and leave folder/rank*.json of all steps but the first."""
    model, step = STRATEGIES[strategy](world)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = DataLoader(TensorDataset(torch.zeros(ROWS * num_steps, WIDTH)), batch_size=ROWS)
    with faults(world, *chosen), recording(world, folder) as end_step:
        for (batch,) in batches:
            step(batch)
            optimizer.step()
            optimizer.zero_grad()
            end_step()


def timed_run(
    *chosen: Fault, strategy: str = "ddp", num_steps: int = 6, world_size: int = 4
) -> Trace:
    """The trace of such a training on `world_size` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        run(timed_training, world_size, args=(folder, chosen, num_steps, strategy), timeout=120)
        return read(sorted(Path(folder).glob("rank*.json")))
