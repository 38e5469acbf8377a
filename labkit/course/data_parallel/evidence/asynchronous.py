"""Measure asynchrony and compression on real ranks; each function returns one number.

Mean staleness is the number of other workers at any mix of speeds, so no clock decides it. A clock
decides which worker's gradients are older, and a card gives no number of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import nn

from labkit.comm import Group
from labkit.data_parallel import DDP, library_all_reduce, local_sgd, parameter_server
from labkit.data_parallel.bucketed import make_buckets
from labkit.data_parallel.compression import Compressor, OneBit, PowerSGD, TopK
from labkit.data_parallel.ddp import train
from labkit.data_parallel.local_sgd import OuterOptimizer
from labkit.data_parallel.parameter_server import Arrival, Asynchronous, Synchronous
from labkit.interview.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig

_CONFIG = GPTConfig(context=32, num_layers=1, hidden=32, num_heads=2)
_TINY = GPTConfig(context=8, num_layers=1, hidden=8, num_heads=1)  # for what no size decides
_SETTINGS = TrainConfig(num_sequences=16, optimizer="sgd", learning_rate=0.16, num_steps=2)
_PLAIN = "all-reduce"
_COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "top 1%": lambda: TopK(0.01),
    "top 0.1%": lambda: TopK(0.001),
    "one bit": OneBit,
    "PowerSGD, rank 1": lambda: PowerSGD(1),
}


@real_run
def server_volume(num_workers: int) -> float:
    """Return bytes that a synchronous server sends in a step, in multiples of the parameters."""
    result = run(_served, num_workers + 1)
    nbytes = 4 * sum(parameter.numel() for parameter in GPT(_CONFIG).parameters())
    return result.traffic[0].sent_bytes / (_SETTINGS.num_steps * nbytes)


def _served(world: Group) -> None:
    parameter_server.train(world, _CONFIG, _SETTINGS, Synchronous())


@real_run
def staleness(num_workers: int, slow_factor: int = 1, of: str = "all") -> float:
    """Mean staleness of the gradients that an asynchronous server gets from workers on other ranks.

    A worker sleeps 20 ms before each gradient, the last one slow_factor times as long. of: "all",
    "slow" for that worker, "others" for the rest. The start is left out, when all have version 0.
    """
    arrivals = _arrivals(num_workers, slow_factor)[2 * num_workers :]
    return fmean(
        each.staleness
        for each in arrivals
        if each.is_used and (of == "all" or (each.worker == num_workers) == (of == "slow"))
    )


@real_run
def _arrivals(num_workers: int, slow_factor: int) -> list[Arrival]:
    return run(_asynchronous, num_workers + 1, args=(slow_factor,)).values[0]


def _asynchronous(world: Group, slow_factor: int) -> list[Arrival]:
    """On the server; 20 gradients of each worker on average."""
    settings = replace(_SETTINGS, num_steps=20)
    delay = dict.fromkeys(range(1, world.size), 0.02) | {world.size - 1: 0.02 * slow_factor}
    served = parameter_server.train(world, _TINY, settings, Asynchronous(), delay=delay)
    return served.arrivals if served else []


@real_run
def largest_rate(stale_steps: int) -> float:
    """Return the largest rate for which descent on x*x/2 settles, with gradients so many steps old.

    Found by bisection on the iteration itself; without staleness it is 2.
    """
    low, high = 0.0, 3.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if _settles(middle, stale_steps) else (low, middle)
    return low


def _settles(rate: float, stale_steps: int) -> bool:
    x = [1.0] * (stale_steps + 1)
    for _ in range(20_000):
        x.append(x[-1] - rate * x[-1 - stale_steps])
        if abs(x[-1]) > 1e6:
            return False
    return abs(x[-1]) < 0.5


@real_run
def compression_factor(compressor: str) -> float:
    """Return the bytes of a ring all-reduce over those that rank 0 of 4 sends for its gradients."""
    return _bucket_bytes(_PLAIN) / _bucket_bytes(compressor)


@real_run
def _bucket_bytes(compressor: str) -> int:
    result = run(_compressed, 4, args=(compressor,))
    return _labelled_bytes(result.timeline[0].operations, "bucket")


def _labelled_bytes(operations: list, label: str) -> int:
    return sum(each.sent_bytes for each in operations if (each.label or "").startswith(label))


def _compressed(world: Group, compressor: str) -> None:
    how: Any = library_all_reduce if compressor == _PLAIN else _COMPRESSORS[compressor]()
    train(world, _CONFIG, _SETTINGS, all_reduce=how, strategy=DDP)


@real_run
def never_sent(has_feedback: bool) -> float:
    """Return how many of 1,000 entries no rank of 3 has sent in 200 steps of a top 1%."""
    return run(_applied, 3, args=(has_feedback,)).values[0]


def _applied(world: Group, has_feedback: bool) -> int:
    """The first half is noisy around 0.1, the second steadily 0.1."""
    (bucket,) = make_buckets({"w": nn.Parameter(torch.zeros(1000, dtype=torch.float64))})
    exchange = TopK(0.01, error_feedback=has_feedback).for_bucket(bucket)
    generator = torch.Generator().manual_seed(world.rank)
    applied = torch.zeros(1000, dtype=torch.float64)
    for _ in range(200):
        noise = torch.randn(1000, dtype=torch.float64, generator=generator)
        noise[500:] *= 0.01
        applied += exchange(0.1 + noise, world)
    return int((applied == 0).sum())


@real_run
def local_sgd_saving(inner_steps: int) -> float:
    """Return how many times fewer bytes rank 0 of 4 sends in 8 steps with this averaging period."""
    return _outer_bytes(1) / _outer_bytes(inner_steps)


@real_run
def _outer_bytes(inner_steps: int) -> int:
    result = run(_averaged, 4, args=(inner_steps,))
    return _labelled_bytes(result.timeline[0].operations, "outer step")


def _averaged(world: Group, inner_steps: int) -> None:
    settings = TrainConfig(num_sequences=16, num_steps=8)
    outer = OuterOptimizer(learning_rate=1, momentum=0)
    local_sgd.train(world, _TINY, settings, inner_steps=inner_steps, outer=outer)
