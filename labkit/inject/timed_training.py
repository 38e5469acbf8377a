"""Layers that take a given time, and a small training on them with each strategy, recorded.

    data | forward | backward, gradients are reduced meanwhile | optimizer | next step

Four ranks that compute do not run at once on two cores, so one would measure the machine. A rank
that waits needs no core. A `Wait` spends its time in an operator, `labkit::wait`, which a profiler
shows like any operator that computes. The layers around it have real parameters, real gradients and
real messages; the strategies are the lab's own:

    ddp      DDP, a bucket per layer, which has four parameters
    zero3    FullyShardedModule, a unit per layer
    tp       column_linear and row_linear: the layers' time is that of a rank's share
    pp       1F1B, a stage per rank, microbatches of two rows
    moe      ExpertParallelMoE, an expert per rank; the router is balanced

`unequal_training` and `unequal_pipeline` are the same on ranks of unequal speed: with shares of the
batch, or numbers of layers, that are equal or follow the speeds.

A healthy rank is busy for `STEP_S` in each step; a fault's size is best given as a share of it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from labkit.collectives import ring_all_reduce
from labkit.collectives.backend import LIBRARY, RING, CollectiveBackend
from labkit.comm import FatTree, Group, Link, Topology
from labkit.data_parallel import DDP, BackgroundAllReduce, library_all_reduce
from labkit.data_parallel.unequal_shares import SpeedBalancer
from labkit.gpt_config import GPTConfig
from labkit.inject.slow import Fault, SlowRank, compute, faults
from labkit.inject.uneven import NetworkFault
from labkit.launch.run import run
from labkit.moe.moe_layer import ExpertParallelMoE
from labkit.moe.routing import MoEConfig
from labkit.pipeline import Pipeline, one_f_one_b, plan
from labkit.profile import Trace, read, recording, trace_of_run
from labkit.profile.recorder import STEP
from labkit.tensor_parallel import Replicated, column_linear, row_linear
from labkit.zero import FullyShardedModule

LAYERS, ROWS, WIDTH = 5, 20, 64
MOE_LAYERS = 2
LAYER_BYTES = 4 * 2 * (WIDTH**2 + WIDTH)
NETWORK_BYTES_PER_S = 33e6
ROW_S = 0.00025
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


class TimedLayer(Wait):
    """Two linear layers (B, WIDTH) -> (B, WIDTH), large weights and small biases, and the time."""

    def __init__(self, row_s: float = ROW_S) -> None:
        super().__init__(row_s)
        self.up, self.down = (nn.Parameter(torch.rand(WIDTH, WIDTH) / WIDTH) for _ in range(2))
        self.up_bias, self.down_bias = (nn.Parameter(torch.zeros(WIDTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, after its time."""
        y = F.linear(x, self.up, self.up_bias)
        return super().forward(F.linear(y, self.down, self.down_bias))


def _stack() -> nn.Sequential:
    return nn.Sequential(*(TimedLayer() for _ in range(LAYERS)))


def _plain(model: nn.Module) -> tuple[nn.Module, Step]:
    # If its input needs no gradient, the first layer's backward is over, to hooks, before it began.
    return model, lambda batch: model(batch.requires_grad_()).sum().backward()


def _ddp(world: Group, backend: CollectiveBackend) -> tuple[nn.Module, Step]:
    reduce = BackgroundAllReduce(ring_all_reduce, world) if backend is RING else library_all_reduce
    return _plain(DDP(_stack(), world, reduce, bucket_bytes=LAYER_BYTES))


def _zero3(world: Group, backend: CollectiveBackend) -> tuple[nn.Module, Step]:
    return _plain(FullyShardedModule(_stack(), world, backend=backend))


class _Split(nn.Module):
    """Two linear layers, cut by their inner features, and the time of this rank's share."""

    def __init__(self, world: Group, backend: CollectiveBackend) -> None:
        super().__init__()
        self.layout = Replicated(world, backend)
        self.up, self.down = (nn.Parameter(torch.rand(WIDTH, WIDTH) / WIDTH) for _ in range(2))
        self.wait = Wait()

    def forward(self, x: Tensor) -> Tensor:
        (y,) = column_linear(x, self.layout, self.up)
        return row_linear(self.wait(y), self.layout, self.down)


def _tp(world: Group, backend: CollectiveBackend) -> tuple[nn.Module, Step]:
    model = nn.Sequential(*(_Split(world, backend) for _ in range(LAYERS)))
    return model, lambda batch: model(batch.requires_grad_()).sum().backward()


def _pp(world: Group, backend: CollectiveBackend) -> tuple[nn.Module, Step]:
    stage = nn.Sequential(TimedLayer((LAYERS - 1) * ROW_S), TimedLayer())
    schedule = plan(one_f_one_b, world.size, ROWS // 2)
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
            self.moe.experts[name] = nn.Sequential(expert, Wait(ROW_S * LAYERS / MOE_LAYERS))
        with torch.no_grad():
            self.moe.router.gate.weight.copy_(10 * torch.eye(world.size, WIDTH))

    def forward(self, x_ND: Tensor) -> Tensor:
        """The tokens, with what their experts add."""
        return x_ND + 0.01 * self.moe(x_ND[None])[0][0]


def _moe(world: Group, backend: CollectiveBackend) -> tuple[nn.Module, Step]:
    model = nn.Sequential(*(_TimedExperts(world) for _ in range(MOE_LAYERS)))
    turn = torch.arange(ROWS) + ROWS * world.rank
    by_turn = torch.eye(world.size, WIDTH)[turn % world.size]
    return model, lambda batch: model((batch + by_turn).requires_grad_()).sum().backward()


STRATEGIES = {"ddp": _ddp, "zero3": _zero3, "tp": _tp, "pp": _pp, "moe": _moe}


NETWORK = FatTree(
    hosts=4, hosts_per_leaf=2, leaves_per_pod=2, slow=Link(NETWORK_BYTES_PER_S, 150e-6)
)
"""A host for each of 4 ranks, two leaf switches, one pod."""


def timed_training(
    world: Group,
    folder: str | None,
    chosen: tuple[Fault, ...] = (),
    num_steps: int = 6,
    strategy: str = "ddp",
) -> None:
    """Train with these faults for a step to warm up and `num_steps` more.

    folder: profiler traces go to folder/rank0.json and so on; None: the journal is all there is,
    and collectives are rings of messages, which a topology throttles.
    """
    backend = RING if folder is None else LIBRARY
    with faults(world, *chosen):
        model, step = STRATEGIES[strategy](world, backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        rows = torch.zeros(ROWS * (num_steps + 1), WIDTH)
        batches = iter(DataLoader(TensorDataset(rows), batch_size=ROWS))
        with nullcontext(lambda: None) if folder is None else recording(world, folder) as end_step:
            for number in range(num_steps + 1):
                with world.region(STEP if number else "warm-up"):
                    with world.region("data"):
                        (batch,) = next(batches)
                    step(batch)
                    optimizer.step()
                    optimizer.zero_grad()
                end_step()


def timed_run(
    *chosen: Fault,
    strategy: str = "ddp",
    num_steps: int = 5,
    on_network: bool = False,
    folder: Path | None = None,
) -> Trace:
    """The trace of such a training on 4 ranks.

    From PyTorch Profiler on this machine's own network; or from the journal on the throttled
    NETWORK, if this is asked for or a fault is one of the network. folder: keeps the files, for
    Perfetto and others.
    """
    network: Topology = NETWORK
    for fault in chosen:
        if isinstance(fault, NetworkFault):
            network, on_network = fault.on(network), True
    if on_network:
        done = run(
            timed_training, 4, (None, chosen, num_steps, strategy), topology=network, timeout=120
        )
        if folder is not None:
            folder.mkdir(exist_ok=True)
            done.to_chrome_trace(folder / "trace.json")
        return trace_of_run(done)
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as kept:
        run(timed_training, 4, (str(kept), chosen, num_steps, strategy), timeout=120)
        return read([kept])


def unequal_training(
    world: Group,
    phases: Sequence[tuple[int, Mapping[int, float]]],
    every: int | None = None,
    rows: int = 8 * LAYERS,
) -> list[tuple[float, list[int]]]:
    """Train with DDP on ranks of unequal speed; return the seconds and the shares of each step.

    phases: (steps, by slow rank the times that it takes longer). every: steps between two
    balancings; None: shares stay equal. rows: of the whole batch.
    """
    model = DDP(_stack(), world, bucket_bytes=LAYER_BYTES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    balancer = SpeedBalancer(model, rows, every=every or 1)
    batch, steps = torch.zeros(rows, WIDTH), []
    for num_steps, factors in phases:
        with faults(world, *(SlowRank(rank, each - 1) for rank, each in factors.items())):
            for _ in range(num_steps):
                began_s, shares = time.perf_counter(), balancer.shares
                share = batch.split(shares)[world.rank].requires_grad_()
                with balancer.timed() if every else nullcontext():
                    # n times the sum over rows / all rows: DDP divides by n.
                    (model(share).sum() * world.size / rows).backward()
                optimizer.step()
                optimizer.zero_grad()
                steps.append((time.perf_counter() - began_s, shares))
    return steps


def unequal_pipeline(
    world: Group, layers: Sequence[int], factors: Mapping[int, float], num_steps: int = 3
) -> list[float]:
    """Train with 1F1B, a stage of so many layers on each rank; return the seconds of each step.

    factors: by slow rank the times that it takes longer. Microbatches have two rows.
    """
    stage = nn.Sequential(*(TimedLayer() for _ in range(layers[world.rank])))
    pipeline = Pipeline(
        plan(one_f_one_b, world.size, ROWS // 2), {world.rank: stage}, lambda y, _: y.sum(), world
    )
    steps, batch = [], torch.zeros(ROWS, WIDTH).requires_grad_()
    with faults(world, *(SlowRank(rank, each - 1) for rank, each in factors.items())):
        for _ in range(num_steps):
            began_s = time.perf_counter()
            pipeline.step(batch, batch)
            world.barrier()  # a step ends when the last rank has ended it
            steps.append(time.perf_counter() - began_s)
    return steps
