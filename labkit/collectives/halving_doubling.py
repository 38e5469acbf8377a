"""Halving-doubling all-reduce: a reduce-scatter in log2 n steps, then an all-gather in log2 n.

Halving: in step s each rank pairs with the one 2**s away. It sends one half of the range that it
still sums, and adds what arrives to the other half. Doubling: the same pairs in reverse order swap
finished halves. Four ranks, x in four parts, "ab0" is the sum of a's and b's part 0:

                        rank a         rank b         rank c         rank d
    has                 a0 a1 a2 a3    b0 b1 b2 b3    c0 c1 c2 c3    d0 d1 d2 d3
    halving, 1 away     ab0 ab1        ab2 ab3        cd0 cd1        cd2 cd3
    halving, 2 away     abcd0          abcd2          abcd1          abcd3
    doubling, 2 away    abcd0 abcd1    abcd2 abcd3    abcd0 abcd1    abcd2 abcd3
    doubling, 1 away    all            all            all            all

Steps: 2 log2 n. Wire: D/2 + D/4 + ..., twice: 2(n-1)/n of x, as little as a ring, and the longest
messages go to the nearest rank. But the partner changes every step and is up to n/2 ranks away,
while a ring's neighbour may be on the next port. And the number of ranks must be a power of two.

Other numbers of ranks, n = p + r with p the largest power of two: each even rank below 2r first
sends all of x to the odd rank after it, which adds it, works for both and sends the sum back at the
end. This adds 2 steps and D each way, which is expensive for long tensors. A ring takes any n.
Papers: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004, LNCS 3036.
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005.
"""

from collections.abc import Iterator

import torch

from labkit.collectives.stream import BLOCK_BYTES, Move, blocks, result_like, stream
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.comm.member import messages_of


def halving_doubling_all_reduce(
    x: torch.Tensor,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> torch.Tensor:
    """Return the sum of `x` over the group's ranks, on every rank.

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. The result
    is a new contiguous tensor and x is unchanged, unless out=x asks for the sum in place.
    block_bytes: one block of this size is added while the next one is on its way.
    Wire: 2(n-1)/n of x when n is a power of two; for others see above. Memory besides the result:
    two blocks, and a copy of an x that is not contiguous. TypeError for a dtype without a sum,
    ValueError for an `out` unlike x.
    """
    group = chosen(group)
    total = result_like(x, out, group)
    if group.size == 1:
        return total.copy_(x.detach())
    part, whole = x.detach().contiguous().view(-1), total.view(-1)
    workers = _workers(group.size)
    with messages_of("halving_doubling_all_reduce", x):
        if group.rank not in workers:
            stream(_sent(part, group.rank + 1, block_bytes), group)
            group.recv(whole, group.rank + 1)
            return total
        works_for_two = group.rank > 0 and group.rank - 1 not in workers
        if works_for_two:
            stream(_added(part, whole, group.rank - 1, block_bytes), group)
            part = whole
        _halve_and_double(part, whole, 1, workers, group, block_bytes)
        if works_for_two:
            group.send(whole, group.rank - 1)
    return total


def _workers(size: int) -> list[int]:
    """Return the ranks that take part, a power of two of them. The first odd ones work for two."""
    num_surplus = size - (1 << (size.bit_length() - 1))
    return [*range(1, 2 * num_surplus, 2), *range(2 * num_surplus, size)]


def _halve_and_double(
    part: torch.Tensor,
    total: torch.Tensor,
    distance: int,
    workers: list[int],
    group: Group,
    block_bytes: int,
) -> None:
    """Sum every worker's `part` into `total`: exchange halves, add to the kept one, swap back.

    part, total: (numel,), the range that earlier pairs, less than `distance` apart, have kept. They
    are the same memory or share none.
    """
    if distance == len(workers):
        return
    number = workers.index(group.rank)
    partner = workers[number ^ distance]
    kept = 1 if number & distance else 0
    parts, totals = part.tensor_split(2), total.tensor_split(2)
    sent = _sent(parts[1 - kept], partner, block_bytes)
    added = _added(parts[kept], totals[kept], partner, block_bytes)
    stream([*sent, *added], group)
    _halve_and_double(totals[kept], totals[kept], 2 * distance, workers, group, block_bytes)
    stream([Move(totals[kept], (), (partner,)), Move(totals[1 - kept], (partner,), ())], group)


def _sent(part: torch.Tensor, target: int, block_bytes: int) -> Iterator[Move]:
    for block in blocks(part, block_bytes):
        yield Move(block, (), (target,))


def _added(
    part: torch.Tensor, total: torch.Tensor, source: int, block_bytes: int
) -> Iterator[Move]:
    both = zip(blocks(part, block_bytes), blocks(total, block_bytes), strict=True)
    for part_block, total_block in both:
        yield Move(total_block, (source,), (), part_block)
