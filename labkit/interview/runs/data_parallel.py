"""Data parallelism, measured: short runs on real ranks, each of which returns one number.

What a card claims about equality, counts and wrong averages comes from here; what it claims about
bytes and seconds at the size of a cluster, from `calc`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from labkit import Run
from labkit.comm import Group
from labkit.data_parallel import DDP, BucketedDDP, NaiveDDP, library_all_reduce
from labkit.data_parallel.ddp import train
from labkit.interview.runs import equal_batches
from labkit.interview.runs.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.optimizer import SGD
from labkit.train import TrainConfig, loss

# Small: what its ranks send is what a run costs. 19 tensors, in 4 buckets.
_CONFIG = GPTConfig(context=32, hidden=32, num_heads=2)
_BUCKET_BYTES = 30_000
_SGD = TrainConfig(num_steps=5, num_sequences=7, optimizer="sgd", learning_rate=0.1)
_SETTINGS = {"sgd": _SGD, "adamw": replace(_SGD, optimizer="adamw", learning_rate=3e-3)}


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
    """The largest difference of a parameter between two of 4 ranks after 5 steps; 0: to the bit."""
    values = _trained(rung).values
    return max(each.largest_difference(values[0]) for each in values)


@real_run
def distance_kept_without_broadcast() -> float:
    """How far two ranks of unlike seeds are apart after 5 averaged steps, over how far before."""
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
    """Those that there are, in the order of the parameters."""
    return [p.grad for p in module.parameters() if p.grad is not None]


def _place(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def num_all_reduces(rung: str) -> float:
    """All-reduces of a step of a small GPT on 4 ranks: "naive", "bucketed" or "overlapped"."""
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
    """The gradient of w * mean(1, 2, ..., 7), which is 4, when 7 examples are dealt to the ranks.

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
    """How far 4 ranks' averaged gradient is from one process's, relative to that one's length."""
    return equal_batches.distance("batch" if has_batch_norm else "layer", (per_rank,) * 4)
