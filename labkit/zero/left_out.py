"""Parameters that a step has left out: an error, or, where that may be, asked of every rank."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.comm import Group
from labkit.data_parallel.ddp import with_gradient_anywhere
from labkit.zero.shard import Shard


def require_none_missing(
    shards: Sequence[Shard], missing: Sequence[set[int]], group: Group
) -> None:
    """RuntimeError that names the parameters without a gradient on this rank, by shard."""
    names = [
        shard.names[index]
        for shard, indices in zip(shards, missing, strict=True)
        for index in sorted(indices)
    ]
    if names:
        raise RuntimeError(
            f"rank {group.rank}: no gradient for {', '.join(names)}, which a backward pass left "
            "out. Use them, or pass find_unused_parameters=True; or freeze them everywhere with "
            "requires_grad_(False), and make the optimizer after"
        )


def missing_everywhere(
    missing: Sequence[set[int]], shards: Sequence[Shard], group: Group
) -> list[set[int]]:
    """By shard: the parameters that have a gradient on no rank, by number.

    missing: those without one on this rank. Wire: one byte per parameter in an all-reduce.
    """
    sizes = [len(shard.names) for shard in shards]
    has = [i not in each for each, n in zip(missing, sizes, strict=True) for i in range(n)]
    anywhere = iter(with_gradient_anywhere(has, group))
    return [{i for i in range(n) if not next(anywhere)} for n in sizes]
