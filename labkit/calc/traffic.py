"""Bytes, messages and steps of the collectives: formulas, written apart from the code they judge.

n ranks. `nbytes` is the size D of the whole tensor unless a name says shard. Sent bytes are what
one rank puts on the wire; payload is what the caller passes. A ring splits numel elements into n
segments by torch.tensor_split's rule, so uneven sizes have exact answers too:

    ring, per rank        sent bytes           messages     steps
    reduce-scatter        (n-1)/n D            n-1          n-1
    all-gather            (n-1)/n D            n-1          n-1
    all-reduce            2(n-1)/n D           2(n-1)       2(n-1)

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 69(2), 2009. Broadcast: a binomial tree, as in Thakur, Rabenseifner and
Gropp, IJHPCA 19(1), 2005. Gather and scatter: straight to and from the root, as gloo does.
"""

import math


def segment_numels(numel: int, world_size: int) -> list[int]:
    """Elements of each of the n segments: the first numel % n are one longer.

    segment_numels(10, 4) == [3, 3, 2, 2]
    """
    check_ranks(world_size)
    check_not_negative(numel, "numel")
    if not _is_whole(numel):
        raise ValueError(f"numel={numel}: elements come whole; give a whole number, 0 or more")
    shortest, num_longer = divmod(numel, world_size)
    return [shortest + (segment < num_longer) for segment in range(world_size)]


def ring_all_reduce_steps(world_size: int) -> int:
    """Steps one after the other: n-1 to reduce-scatter, n-1 to all-gather. 14 for 8 ranks."""
    check_ranks(world_size)
    return 2 * (world_size - 1)


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
    return itemsize * _numel_without(numel, world_size, rank, rank, itemsize)


def ring_all_gather_sent_bytes(numel: int, itemsize: int, world_size: int, rank: int) -> int:
    """Exact bytes that `rank` sends: every segment but its right neighbour's, who has that already.

    numel counts the gathered tensor; segment s starts at rank s and goes right.
    """
    return itemsize * _numel_without(numel, world_size, rank, rank + 1, itemsize)


def ring_all_reduce_sent_bytes(numel: int, itemsize: int, world_size: int, rank: int) -> int:
    """Exact bytes that `rank` sends: both phases, for any numel including 0 and fewer than n.

    10 float32 over 4 ranks, segments 3, 3, 2, 2: rank 0 sends (7 + 7) * 4, rank 2 (8 + 8) * 4.
    """
    return ring_reduce_scatter_sent_bytes(
        numel, itemsize, world_size, rank
    ) + ring_all_gather_sent_bytes(numel, itemsize, world_size, rank)


def broadcast_sent_bytes(nbytes: int, world_size: int, rank: int, root: int = 0) -> int:
    """Bytes that `rank` passes on in a binomial tree: the whole tensor to each of its children.

    After step s, 2**(s+1) ranks have it. Counted from the root, rank r has one child r + 2**s for
    each step s after it got the tensor itself: the root of 8 sends 3 D, its last child nothing.
    """
    check_rank(rank, world_size)
    check_rank(root, world_size)
    check_not_negative(nbytes, "nbytes")
    from_root = (rank - root) % world_size
    first_step = from_root.bit_length()
    num_steps = (world_size - 1).bit_length()
    return nbytes * sum(from_root + 2**step < world_size for step in range(first_step, num_steps))


def gather_sent_bytes(shard_bytes: int, world_size: int, rank: int, root: int = 0) -> int:
    """Bytes that `rank` sends when each sends its shard straight to the root: the root, none."""
    check_rank(rank, world_size)
    check_rank(root, world_size)
    check_not_negative(shard_bytes, "shard_bytes")
    return 0 if rank == root else shard_bytes


def scatter_sent_bytes(shard_bytes: int, world_size: int, rank: int, root: int = 0) -> int:
    """Bytes that `rank` sends when the root sends each other rank its shard: (n-1) shards, or 0."""
    check_rank(rank, world_size)
    check_rank(root, world_size)
    check_not_negative(shard_bytes, "shard_bytes")
    return (world_size - 1) * shard_bytes if rank == root else 0


def all_to_all_sent_bytes(nbytes: int | float, world_size: int) -> float:
    """Bytes that each rank sends with equal splits: its tensor but for the part that it keeps."""
    check_ranks(world_size)
    check_not_negative(nbytes, "nbytes")
    return (world_size - 1) * nbytes / world_size


def _numel_without(numel: int, world_size: int, rank: int, left_out: int, itemsize: int) -> int:
    check_rank(rank, world_size)
    if not 1 <= itemsize < math.inf:
        raise ValueError(f"itemsize={itemsize} bytes per element; float32 has 4, bfloat16 has 2")
    return numel - segment_numels(numel, world_size)[left_out % world_size]


def check_ranks(world_size: int) -> None:
    """Raises ValueError unless `world_size` is a count of ranks."""
    if not _is_whole(world_size) or world_size < 1:
        raise ValueError(f"{world_size} ranks cannot talk; a group has a whole number from 1")


def check_rank(rank: int, world_size: int) -> None:
    """Raises ValueError unless `rank` is one of 0 to world_size - 1."""
    check_ranks(world_size)
    if not _is_whole(rank) or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a group of {world_size}: 0 to {world_size - 1}")


def check_not_negative(amount: float, name: str) -> None:
    """Raises ValueError for an amount below 0, infinite, or not a number, naming it."""
    if not 0 <= amount < math.inf:
        raise ValueError(
            f"{name}={amount}: an amount is finite and cannot be below 0; 0 is allowed"
        )


def _is_whole(number: float) -> bool:
    return math.isfinite(number) and number == int(number)
