"""Short runs behind the cards on context parallelism: four ranks, one attention.

Each function returns one number that ranks have counted. Rank 0 is the one that is asked: all
ranks send alike here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from labkit import Group
from labkit.comm.operation import Operation
from labkit.context_parallel import (
    gathered_attention,
    ring_attention,
    shard_sequence,
    ulysses_attention,
    zigzag,
)
from labkit.interview.real_run import real_run, run
from labkit.launch.run_result import Run

_RANKS = 4
_ATTENTION: dict[str, Callable[..., Tensor]] = {
    "gathered": gathered_attention,
    "ring": ring_attention,
    "ulysses": ulysses_attention,
}


@real_run
def own_keys_sent(strategy: str, phase: str = "forward") -> float:
    """Return how many times its own keys and values a rank sends for attention over a sharded
    sequence.

    strategy: "ring", "gathered" or "ulysses"; as many heads of keys as of queries, float32.
    """
    result = _attention(strategy)
    return _sent(result, phase) / result.values[0]


def _of_phase(result: Run, phase: str) -> list[Operation]:
    """Return the operations that rank 0 posted in its region of this name."""
    return result.timeline[0].within(phase)


def _sent(result: Run, phase: str) -> int:
    return sum(each.sent_bytes for each in _of_phase(result, phase))


def _attention(strategy: str) -> Run:
    return run(partial(_cut_attention, strategy=strategy), _RANKS)


def _cut_attention(world: Group, strategy: str) -> int:
    torch.manual_seed(0)
    q, k, v = (
        shard_sequence(torch.randn(1, 4, 256, 16), world, zigzag, dim=2).contiguous()
        for _ in range(3)
    )
    for each in (q, k, v):
        each.requires_grad_()
    world.barrier()
    with world.region("forward"):
        out = _ATTENTION[strategy](q, k, v, world, True, zigzag)
    with world.region("backward"):
        out.square().sum().backward()
    return k.nbytes + v.nbytes
