"""Halving-doubling all-reduce: in log2 n steps to a part of the sum, in log2 n back to all of it.

In step s each rank swaps with the one 2**s away: of what it still holds it keeps one half, sends
the other, and adds what comes to the half that it keeps. Then back: in the same pairs, last first,
ranks swap finished halves. Four ranks, x in four parts, "ab" = a's part plus b's:

                        rank a         rank b         rank c         rank d
    has                 a0 a1 a2 a3    b0 b1 b2 b3    c0 c1 c2 c3    d0 d1 d2 d3
    halving, 1 away     ab0 ab1        ab2 ab3        cd0 cd1        cd2 cd3
    halving, 2 away     abcd0          abcd2          abcd1          abcd3
    doubling, 2 away    abcd0 abcd1    abcd2 abcd3    abcd0 abcd1    abcd2 abcd3
    doubling, 1 away    all            all            all            all

Steps: 2 log2 n. Wire: D/2 + D/4 + ..., twice: 2(n-1)/n of x, as little as a ring, and the longest
messages go to the nearest rank. But partners change from step to step and are up to n/2 away, where
a ring's neighbour may be on the next port, and it takes a power of two of ranks.

With n = p + r ranks, p the largest power of two in n, of ranks 0 to 2r - 1 the even ones first send
all of x to the odd ones beside them, who add it, work for both, and send the sum back at the end:
2 steps and D each way more. That is expensive for long tensors; a ring takes any n as it is.
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

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. It is left
    alone, and the result is a new contiguous tensor, unless out=x asks for the sum in place.
    block_bytes: what comes is added in blocks of this size, the next one on its way meanwhile.
    Wire: 2(n-1)/n of x when n is a power of two; see above for others. Memory besides the result:
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
    """Return as many ranks as the largest power of two in `size`, each beside a folded one if
    any."""
    num_missing = size - (1 << (size.bit_length() - 1))
    return [*range(1, 2 * num_missing, 2), *range(2 * num_missing, size)]


def _halve_and_double(
    part: torch.Tensor,
    total: torch.Tensor,
    distance: int,
    workers: list[int],
    group: Group,
    block_bytes: int,
) -> None:
    """Sum every worker's `part` into `total`: swap halves, sum the kept one, swap back.

    part, total: (numel,), the same memory or none in common. Pairs fewer than `distance` apart have
    swapped before: this is the half that was kept then.
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
