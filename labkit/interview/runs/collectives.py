"""Collectives on real ranks: bytes and messages by the journals."""

import torch

from labkit import Group, collectives, run
from labkit.interview.runs.real_run import real_run


@real_run
def ring_sent_bytes(world_size: int, num_bytes: int, num_tensors: int = 1) -> int:
    """Bytes that rank 0 sends to all-reduce `num_bytes` of float32 on a ring, in equal tensors."""
    return _ring(world_size, num_bytes, num_tensors)[0]


@real_run
def ring_messages(world_size: int, num_bytes: int, num_tensors: int = 1) -> int:
    """Messages that rank 0 sends to all-reduce `num_bytes` of float32 on a ring."""
    return _ring(world_size, num_bytes, num_tensors)[1]


@real_run
def _ring(world_size: int, num_bytes: int, num_tensors: int) -> tuple[int, int]:
    numel = num_bytes // 4 // num_tensors
    traffic = run(_all_reduce_each, world_size, (numel, num_tensors)).traffic[0]
    return traffic.sent_bytes, traffic.by_operation["send"].count


def _all_reduce_each(world: Group, numel: int, num_tensors: int) -> None:
    for _ in range(num_tensors):
        collectives.ring_all_reduce(torch.ones(numel), world)
