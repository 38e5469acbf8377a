"""What all-reduce algorithms send, from the journals of real ranks."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from labkit import Group
from labkit.collectives import (
    double_tree_all_reduce,
    halving_doubling_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from labkit.interview.runs.real_run import real_run, run

ALGORITHMS = MappingProxyType(
    {
        "ring": ring_all_reduce,
        "tree": tree_all_reduce,
        "double_tree": double_tree_all_reduce,
        "halving_doubling": halving_doubling_all_reduce,
    }
)
NUMEL = 840  # of float32: a multiple of 2 to 8


def sends(algorithm: str, world_size: int) -> int:
    """Messages that the busiest rank sends in one all-reduce."""
    return max(count for count, _ in _by_rank(algorithm, world_size))


def tensors_sent(algorithm: str, world_size: int) -> float:
    """Bytes that the busiest rank sends in one all-reduce, over the bytes of the tensor."""
    return max(nbytes for _, nbytes in _by_rank(algorithm, world_size)) / (4 * NUMEL)


@real_run
def _by_rank(algorithm: str, world_size: int) -> tuple[tuple[int, int], ...]:
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: give one of {', '.join(ALGORITHMS)}")
    result = run(_all_reduce, world_size, args=(algorithm,))
    found: list[Mapping] = [traffic.by_operation for traffic in result.traffic]
    return tuple((each["send"].count, each["send"].sent_bytes) for each in found)


def _all_reduce(world: Group, algorithm: str) -> None:
    x = torch.arange(NUMEL, dtype=torch.float32) + world.rank
    total = ALGORITHMS[algorithm](x, world)
    ranks = world.size * (world.size - 1) / 2
    if not torch.equal(total, world.size * torch.arange(NUMEL) + ranks):
        raise RuntimeError(f"{algorithm} made a wrong sum on rank {world.rank}")
