"""Bytes of the backend's collectives with a root, and of its all-to-all, per rank.

Broadcast: a binomial tree, as in Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19(1), 2005. Gather and scatter: straight to and from
the root, as gloo does.
"""

from labkit.calc.traffic.checks import check_not_negative, check_rank, check_ranks


def broadcast_sent_bytes(nbytes: int, world_size: int, rank: int, root: int = 0) -> int:
    """Bytes that `rank` passes on in a binomial tree: the whole tensor to each of its children.

    After step s, 2**(s+1) ranks have it. Counted from the root, rank r has one child r + 2**s for
    each step s after it got the tensor itself: the root of 8 sends 3 D, its last child nothing.
    """
    world_size = check_ranks(world_size)
    rank, root = check_rank(rank, world_size), check_rank(root, world_size, "root")
    check_not_negative(nbytes, "nbytes")
    from_root = (rank - root) % world_size
    first_step = from_root.bit_length()
    num_steps = (world_size - 1).bit_length()
    return nbytes * sum(from_root + 2**step < world_size for step in range(first_step, num_steps))


def gather_sent_bytes(shard_bytes: int, world_size: int, rank: int, root: int = 0) -> int:
    """Bytes that `rank` sends when each sends its shard straight to the root: the root, none."""
    check_rank(rank, world_size)
    check_rank(root, world_size, "root")
    check_not_negative(shard_bytes, "shard_bytes")
    return 0 if rank == root else shard_bytes


def scatter_sent_bytes(shard_bytes: int, world_size: int, rank: int, root: int = 0) -> int:
    """Bytes that `rank` sends when the root sends each other rank its shard: (n-1) shards, or 0."""
    check_rank(rank, world_size)
    check_rank(root, world_size, "root")
    check_not_negative(shard_bytes, "shard_bytes")
    return (world_size - 1) * shard_bytes if rank == root else 0


def all_to_all_sent_bytes(nbytes: int | float, world_size: int) -> float:
    """Bytes that each rank sends with equal splits: its tensor but for the part that it keeps."""
    check_ranks(world_size)
    check_not_negative(nbytes, "nbytes")
    return (world_size - 1) * nbytes / world_size
