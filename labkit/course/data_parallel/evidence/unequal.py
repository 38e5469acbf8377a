"""Measure unequal shares on real ranks: shares by speed, the gradient, bytes of unequal shards.

The seconds of a row are given and not measured, so that no clock decides a number here.
benchmarks/unequal.py measures them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from labkit import Group
from labkit.data_parallel import DDP
from labkit.data_parallel.unequal_shares import SpeedBalancer, train
from labkit.interview.real_run import real_run, run
from labkit.model import GPTConfig
from labkit.pipeline import balanced_stages
from labkit.train import TrainConfig, train_serial
from labkit.zero.unequal_shards import unequal_zero1_step

_TINY = GPTConfig(context=8, num_layers=1, hidden=16, num_heads=2)
_SETTINGS = TrainConfig(
    num_steps=3, num_sequences=7, optimizer="sgd", learning_rate=0.1, dtype=torch.float64
)


@real_run
def balanced_shares(rows: int, row_s: tuple[float, ...], gain: float = 0.05) -> list[int]:
    """Return the rows of each rank after one balancing on real ranks.

    row_s: seconds of a row, by rank. gain: the least saving for which shares change.
    """
    shares: list[int] = run(_balanced, len(row_s), (rows, row_s, gain)).values[0]
    return shares


def _balanced(world: Group, rows: int, row_s: Sequence[float], gain: float) -> list[int]:
    balancer = SpeedBalancer(DDP(nn.Linear(2, 2), world), rows, gain=gain)
    balancer.balance(row_s[world.rank])
    return balancer.shares


def slowest_seconds(rows: int, row_s: tuple[float, ...], is_balanced: bool) -> float:
    """Return the seconds of the slowest rank, with equal shares or after a balancing."""
    n = len(row_s)
    shares = balanced_shares(rows, row_s) if is_balanced else [rows // n] * n
    return max(share * each for share, each in zip(shares, row_s, strict=True))


@real_run
def balancing_bytes() -> int:
    """Return the bytes that a rank of four contributes to a balancing."""
    result = run(_balanced, 4, (16, (1.0, 1.0, 1.0, 3.0), 0.05))
    gathered: int = result.traffic[0].by_operation["all_gather"].payload_bytes
    return gathered


@real_run
def distance_from_serial(shares: tuple[int, ...]) -> float:
    """Return the largest difference of a parameter from one process, after 3 steps in float64.

    shares: by rank, of 7 sequences.
    """
    result = run(train, len(shares), (_TINY, _SETTINGS, None, list(shares)))
    serial = train_serial(_TINY, _SETTINGS)
    return max(each.largest_difference(serial) for each, _ in result.values)


@real_run
def difference_with_shares(shares: tuple[int, ...]) -> float:
    """Return the largest difference of a parameter between two ranks after 3 steps; 0: no bit."""
    values = run(train, len(shares), (_TINY, _SETTINGS, None, list(shares))).values
    return max(each.largest_difference(values[0][0]) for each, _ in values)


@real_run
def sent_with_shards(shards: tuple[int, ...]) -> list[int]:
    """Return the numbers that each rank sends in a step of ZeRO-1 with shards of unequal size."""
    result = run(_unequal_zero1, len(shards), (shards,))
    return [each.sent_bytes // 4 for each in result.traffic]


class _Descent:
    def step(self, weights: torch.Tensor, gradients: torch.Tensor) -> None:
        weights -= 0.1 * gradients


def _unequal_zero1(world: Group, shards: Sequence[int]) -> None:
    flat = torch.ones(sum(shards))
    unequal_zero1_step(flat, torch.ones(sum(shards)), _Descent(), world, shards)


def layers_by_speed(num_layers: int, speeds: tuple[float, ...]) -> list[int]:
    """Return the layers of each stage of a pipeline on ranks of these speeds."""
    return [len(each) for each in balanced_stages([1.0] * num_layers, len(speeds), speeds)]
