"""Measure synchronous data parallelism on real ranks; each function returns one number.

Equality of replicas, wrong averages, accumulation, the gradient against one process with the whole
batch, the learning rate of a larger batch. A card's bytes and seconds at the size of a cluster come
from `calc`.

Overlap: two classes reduce the same buckets by the same ring. BucketedDDP begins when backward has
finished, OverlappedDDP as soon as a bucket is full. Layers sleep instead of computing, as a GPU
would leave the processor alone, and links are throttled to 1 ms and 20 MB/s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit import Group, Link, Run, Topology
from labkit.collectives import ring_all_reduce
from labkit.data_parallel import DDP, BackgroundAllReduce, BucketedDDP, NaiveDDP, library_all_reduce
from labkit.data_parallel.ddp import train
from labkit.interview.real_run import operations_in, real_run, region_of, run
from labkit.large_batch import scaled_learning_rate
from labkit.model import GPT, GPTConfig
from labkit.optimizer import SGD
from labkit.train import TrainConfig, loss

# Small: what its ranks send is what a run costs. 19 tensors, in 4 buckets.
_CONFIG = GPTConfig(context=32, hidden=32, num_heads=2)
_BUCKET_BYTES = 30_000
_SGD = TrainConfig(num_steps=5, num_sequences=7, optimizer="sgd", learning_rate=0.1)
_SETTINGS = {"sgd": _SGD, "adamw": replace(_SGD, optimizer="adamw", learning_rate=3e-3)}
Quiet = Callable[[], AbstractContextManager[None]]
_BYTES_OF_FOUR = 60_000  # four of them for it in float64
FEATURES, HIDDEN = 8, 16
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "none": lambda _: nn.Identity(),
}
_TINY = GPTConfig(context=8, num_layers=1, hidden=16, num_heads=2)
_NUM_SAMPLES, _BASE_BATCH, _BASE_RATE = 8192, 8, 0.01
LAYERS, WIDTH, BACKWARD_S = 5, 128, 0.03
LINK = Link(bandwidth_bytes_per_s=20e6, latency_s=1e-3)
FRAMEWORKS = ("bucketed", "overlapped")


class _Summed(NaiveDDP):
    def reduce_gradients(self) -> None:
        super().reduce_gradients()
        for gradient in gradients_of(self.module):
            gradient *= self.group.size


_RUNGS = {
    "naive": NaiveDDP,
    "bucketed": partial(BucketedDDP, bucket_bytes=_BUCKET_BYTES),
    "overlapped": partial(DDP, bucket_bytes=_BUCKET_BYTES),
    "summed": _Summed,
}


@real_run
def _trained(rung: str, optimizer: str = "sgd") -> Run:
    """5 steps of a small GPT on 4 ranks."""
    args = (_CONFIG, _SETTINGS[optimizer], None, library_all_reduce, _RUNGS[rung])
    return run(train, 4, args=args)


def difference_between_replicas(rung: str = "overlapped") -> float:
    """Return the largest difference of a parameter between two of 4 ranks after 5 steps; 0: to the
    bit."""
    values = _trained(rung).values
    return max(each.largest_difference(values[0]) for each in values)


@real_run
def distance_kept_without_broadcast() -> float:
    """Return the distance of two ranks with unlike seeds after 5 averaged steps, over that
    before."""
    (before, after), (other_before, other_after) = run(_without_broadcast, 2).values
    return ((after - other_after).norm() / (before - other_before).norm()).item()


def _without_broadcast(world: Group) -> list[torch.Tensor]:
    module = GPT(_CONFIG, seed=world.rank)
    optimizer = SGD(module.parameters(), _SGD.learning_rate)
    batches = _SGD.batches(None, _CONFIG.context)
    places = [_place(module)]
    for step in range(_SGD.num_steps):
        optimizer.zero_grad()
        loss(module, batches.at(step).share(world.rank, world.size)).backward()
        for gradient in gradients_of(module):
            world.all_reduce(gradient, "mean", out=gradient)
        optimizer.step()
    return [*places, _place(module)]


def gradients_of(module: nn.Module) -> list[torch.Tensor]:
    """Return the gradients that exist, in the order of the parameters."""
    return [p.grad for p in module.parameters() if p.grad is not None]


def _place(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def num_all_reduces(rung: str) -> float:
    """Return all-reduces of a step of a small GPT on 4 ranks: "naive", "bucketed" or
    "overlapped"."""
    # The journal ends with one in float64, which adds up the losses.
    of_steps = [
        each
        for each in _trained(rung).timeline[0].operations
        if each.kind == "all_reduce" and each.dtype != "float64"
    ]
    return len(of_steps) / _SGD.num_steps


@real_run
def examples_in_a_step(
    ranks: int, per_rank: int, accumulation: int = 1, same_data: bool = False
) -> float:
    """Examples that the averaged gradient of one step really contains, counted in that gradient.

    Each example has a parameter of its own, so a gradient of b examples has b entries above 0.
    same_data: every rank reads the first share, as without a distributed sampler and with one seed.
    """
    return run(_examples, ranks, args=(per_rank, accumulation, same_data)).values[0]


class _OneEach(nn.Module):
    """A parameter for each example: the gradient tells which examples are in it."""

    def __init__(self, num_examples: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(num_examples))

    def forward(self, examples: torch.Tensor) -> torch.Tensor:
        return self.w[examples].mean()


def _examples(world: Group, per_rank: int, accumulation: int, same_data: bool) -> int:
    module = _OneEach(per_rank * world.size * accumulation)
    model = DDP(module, world)
    for number in range(accumulation):
        share = number * world.size + (0 if same_data else world.rank)
        is_last = number == accumulation - 1
        with nullcontext() if is_last else model.no_sync():
            examples = torch.arange(share * per_rank, (share + 1) * per_rank)
            (model(examples) / accumulation).backward()
    (gradient,) = gradients_of(module)
    return int(gradient.count_nonzero())


@real_run
def gradient_of_unequal_shares(ranks: int, is_weighted: bool) -> float:
    """Return the gradient of w * mean(1, 2, ..., 7), which is 4, when 7 examples are dealt to the
    ranks.

    is_weighted: each rank multiplies its loss by its share of the batch times the ranks.
    """
    return run(_unequal, ranks, args=(is_weighted,)).values[0]


class _OneNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * x


def _unequal(world: Group, is_weighted: bool) -> float:
    batch = torch.arange(1.0, 8.0)
    module = _OneNumber()
    model = DDP(module, world)
    share = batch.tensor_split(world.size)[world.rank]
    factor = len(share) / len(batch) * world.size if is_weighted else 1.0
    (model(share).mean() * factor).backward()
    (gradient,) = gradients_of(module)
    return gradient.item()


def loss_of_a_sum(optimizer: str, is_summed: bool) -> float:
    """Training loss of step 5 on 4 ranks; is_summed: gradients are added up and not averaged.

    optimizer: "sgd" or "adamw".
    """
    return _trained("summed" if is_summed else "naive", optimizer).values[0].losses[-1]


def error_of_batch_norm(per_rank: int, has_batch_norm: bool = True) -> float:
    """Return the relative error of 4 ranks' averaged gradient against one process."""
    return distance_from_one_process("batch" if has_batch_norm else "layer", (per_rank,) * 4)


@real_run
def _accumulated(quiet: str, divided_by: int = 4) -> tuple[int, float]:
    """Return all-reduces of 4 microbatches in 4 buckets on 2 ranks, and the gradient over the right
    one.

    quiet: what stands under no_sync: "nothing", "backward", or "both", forward too.
    """
    result = run(_accumulate, 2, args=(quiet, divided_by))
    whole = TrainConfig(num_sequences=16, dtype=torch.float64).batches(None, _CONFIG.context).at(0)
    module = GPT(_CONFIG, dtype=torch.float64)
    loss(module, whole).backward()
    right = torch.cat([gradient.flatten() for gradient in gradients_of(module)])
    count = result.traffic[0].by_operation["all_reduce"].count
    return count, (result.values[0].norm() / right.norm()).item()


def _accumulate(world: Group, quiet: str, divided_by: int) -> torch.Tensor:
    module = GPT(_CONFIG, dtype=torch.float64)
    model = DDP(module, world, bucket_bytes=_BYTES_OF_FOUR)
    whole = TrainConfig(num_sequences=16, dtype=torch.float64).batches(None, _CONFIG.context).at(0)
    share = whole.share(world.rank, world.size)
    for number in range(4):
        keep_quiet: Quiet = nullcontext if number == 3 else model.no_sync
        with keep_quiet() if quiet == "both" else nullcontext():
            value = loss(model, share.share(number, 4)) / divided_by
        with keep_quiet() if quiet in ("both", "backward") else nullcontext():
            value.backward()
    return torch.cat([gradient.flatten() for gradient in gradients_of(module)])


def all_reduces_of_accumulation(quiet: str) -> float:
    """Return all-reduces of 4 microbatches in 4 buckets on 2 ranks.

    quiet: what stands under no_sync: "nothing", "backward", or "both", forward too.
    """
    return _accumulated(quiet)[0]


def share_of_the_right_gradient(times_divided: int) -> float:
    """Return the gradient over the right one, when the loss is divided by 4 so often."""
    return _accumulated("both", 4**times_divided)[1]


@real_run
def distance_from_one_process(
    norm: str = "none", shares: tuple[int, ...] = (16, 16, 16, 16)
) -> float:
    """|averaged - serial| / |serial| of the first layer's gradient, in float64.

    norm: "batch", "layer" or "none". shares: examples of each rank. Each rank's loss is the mean
    over its share, and gradients are averaged over ranks, as DDP does it.
    """
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r}: give one of {', '.join(NORMS)}")
    return run(_far_off, len(shares), args=(norm, shares)).values[0]


def _network(norm: str) -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Linear(FEATURES, HIDDEN, bias=False)
    return nn.Sequential(first, NORMS[norm](HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)).double()


def _far_off(world: Group, norm: str, shares: tuple[int, ...]) -> float:
    serial, replica = _network(norm), _network(norm)
    model = DDP(replica, world)
    x = torch.randn(sum(shares), FEATURES).double()  # after the seed: the same on every rank
    y = x[:, :1] * x[:, 1:2]
    ((serial(x) - y) ** 2).mean().backward()
    mine, my_y = (each.split(shares)[world.rank] for each in (x, y))
    ((model(mine) - my_y) ** 2).mean().backward()
    expected, found = (next(each.parameters()).grad for each in (serial, replica))
    assert expected is not None and found is not None
    return float((found - expected).norm() / expected.norm())


@real_run
def loss_of_batch(batch: int, rule: str) -> float:
    """Test loss after 8,192 sequences in steps of `batch`, SGD with momentum, in one process.

    rule: "as it was", the rate of a batch of 8; "square root" or "scaled", times the root of the
    factor, or the factor. A model that knows nothing has ln 256 = 5.5.
    """
    return run(_tested, 1, (batch, rule)).values[0]


def _tested(world: Group, batch: int, rule: str) -> float:
    scaled = scaled_learning_rate(_BASE_RATE, batch, _BASE_BATCH)
    root = _BASE_RATE * (batch / _BASE_BATCH) ** 0.5
    rate = {"as it was": _BASE_RATE, "square root": root, "scaled": scaled}[rule]
    module = GPT(_TINY)
    optimizer = SGD(module.parameters(), rate, momentum=0.9)
    batches = TrainConfig(num_sequences=batch).batches(None, _TINY.context)
    for step in range(_NUM_SAMPLES // batch):
        optimizer.zero_grad()
        loss(module, batches.at(step)).backward()
        optimizer.step()
    with torch.no_grad():
        return loss(module, replace(batches, num_sequences=256, seed=99).at(0)).item()


@real_run
def run_of(framework: str) -> Run:
    """Return a backward pass through LAYERS layers on two ranks, with a bucket of 64 KiB for each.

    framework: "bucketed" or "overlapped". Regions: "step", and in it "backward" for each layer.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: give one of {', '.join(FRAMEWORKS)}")
    topology = Topology(hosts=1, ranks_per_host=2, fast=LINK)
    return run(_step, 2, args=(framework,), topology=topology)


def started_in_backward(framework: str) -> int:
    """Return how many of LAYERS buckets rank 0 started to send before the last layer's backward
    ended."""
    timeline = run_of(framework).timeline[0]
    _, last_s = region_of(timeline, "backward")  # the last layer's backward
    first: dict[str | None, float] = {}
    for each in operations_in(timeline, "step"):
        if each.kind == "send":
            first.setdefault(each.label, each.posted_s)
    if len(first) != LAYERS:
        raise RuntimeError(f"{len(first)} buckets were sent, not {LAYERS}: {list(first)}")
    return sum(posted_s < last_s for posted_s in first.values())


def _step(world: Group, framework: str) -> None:
    stack = nn.Sequential(*(_Layer(world) for _ in range(LAYERS)))
    bucket_bytes = 4 * WIDTH * WIDTH
    if framework == "bucketed":
        model: Any = BucketedDDP(stack, world, ring_all_reduce, bucket_bytes=bucket_bytes)
    else:
        ring = BackgroundAllReduce(ring_all_reduce, world)
        model = DDP(stack, world, ring, bucket_bytes=bucket_bytes)
        model(torch.ones(1, WIDTH)).sum().backward()  # it then agrees on the order of its buckets
        model.zero_grad()
    world.barrier()
    with world.region("step"):
        model(torch.ones(1, WIDTH)).sum().backward()
        model.reduce_gradients()  # overlapped: backward has done it


class _Layer(nn.Module):
    def __init__(self, world: Group) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.world = world

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Sleeping.apply(self.linear(x), self.world)
        return y


class _Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, y: Tensor, world: Group) -> Tensor:
        context.world = world
        return y.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        with context.world.region("backward"):
            time.sleep(BACKWARD_S)
        return gradients[0], None
