"""Bytes, messages and steps of the ring: formulas, written apart from the code they judge.

n ranks. `nbytes` is the size D of the whole tensor. Sent bytes are what one rank puts on the wire;
payload is what the caller passes. A ring splits numel elements into n segments by
torch.tensor_split's rule, so uneven sizes have exact answers too:

    per rank              sent bytes           messages     steps
    reduce-scatter        (n-1)/n D            n-1          n-1
    all-gather            (n-1)/n D            n-1          n-1
    all-reduce            2(n-1)/n D           2(n-1)       2(n-1)

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 69(2), 2009.
"""

from labkit.calc.traffic.checks import check_itemsize, check_not_negative, check_rank, check_ranks
from labkit.calc.traffic.segments import segment_numels


def ring_all_reduce_steps(world_size: int) -> int:
    """Steps one after the other: n-1 to reduce-scatter, n-1 to all-gather. 14 for 8 ranks."""
    return 2 * (check_ranks(world_size) - 1)


def ring_all_reduce_messages(world_size: int) -> int:
    """Messages that one rank sends: one per step, to its right neighbour."""
    return ring_all_reduce_steps(world_size)


def ring_all_reduce_bytes(nbytes: int | float, world_size: int) -> float:
    """Sent bytes per rank by the closed form 2(n-1)/n D: exact when n divides the elements.

    When it does not, this is the mean over ranks; see `ring_all_reduce_sent_bytes`.
    ring_all_reduce_bytes(1e9, world_size=8) == 1.75e9
    """
    check_ranks(world_size)
    check_not_negative(nbytes, "nbytes")
    return 2 * (world_size - 1) * nbytes / world_size


def ring_reduce_scatter_sent_bytes(numel: int, itemsize: int, world_size: int, rank: int) -> int:
    """Exact bytes that `rank` sends: every segment but its own, which is the one that it ends with.

    Segment s starts at rank s + 1 and goes right until it is complete at rank s.
    """
    return itemsize * _numel_without(numel, itemsize, world_size, rank, 0)


def ring_all_gather_sent_bytes(numel: int, itemsize: int, world_size: int, rank: int) -> int:
    """Exact bytes that `rank` sends: every segment but its right neighbour's, who has that already.

    numel counts the gathered tensor; segment s starts at rank s and goes right.
    """
    return itemsize * _numel_without(numel, itemsize, world_size, rank, 1)


def ring_all_reduce_sent_bytes(numel: int, itemsize: int, world_size: int, rank: int) -> int:
    """Exact bytes that `rank` sends: both phases, for any numel including 0 and fewer than n.

    10 float32 over 4 ranks, segments 3, 3, 2, 2: rank 0 sends (7 + 7) * 4, rank 2 (8 + 8) * 4.
    """
    return ring_reduce_scatter_sent_bytes(
        numel, itemsize, world_size, rank
    ) + ring_all_gather_sent_bytes(numel, itemsize, world_size, rank)


def _numel_without(numel: int, itemsize: int, world_size: int, rank: int, after: int) -> int:
    """All elements but those of the segment that is `after` the rank's own."""
    rank = check_rank(rank, world_size)
    check_itemsize(itemsize)
    segments = segment_numels(numel, world_size)
    return numel - segments[(rank + after) % len(segments)]
