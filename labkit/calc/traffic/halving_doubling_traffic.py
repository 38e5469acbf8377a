"""Bytes, messages, steps and seconds of a halving-doubling all-reduce.

n = p + r ranks, p the largest power of two in n, D bytes. Of ranks 0 to 2r-1 the even ones hand
all of their tensor to the odd ones beside them, and get the sum back. The other p are numbered in
order. A half of an odd number of elements is one longer if it is the first, which lower numbers
keep: so after s halvings number i has as many elements left as there are e = i mod 2**s among 0 to
numel - 1, as if elements were dealt out like cards.

    per rank              sent bytes                        messages               steps
    halving               D/2 + D/4 + ... = (p-1)/p D       log2 p, in blocks      log2 p
    doubling              the same, backwards               log2 p                 log2 p
    if r > 0, even ones   D, before                         1, in blocks           1
              odd ones    D, after                          1                      1

Papers: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur,
Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from labkit.calc.traffic.blocks import num_blocks
from labkit.calc.traffic.checks import (
    check_itemsize,
    check_link,
    check_not_negative,
    check_numel,
    check_rank,
    check_ranks,
)


def halving_doubling_all_reduce_sent_bytes(
    numel: int, itemsize: int, world_size: int, rank: int
) -> int:
    """Exact bytes that `rank` sends, for any numel including 0 and fewer than n.

    10 float32 over 4 ranks: rank 0 sends 5, 2, then 3, 5 elements, 60 bytes; rank 3 sends 5, 3, 2
    and 5, which makes 60 too.
    """
    check_itemsize(itemsize)
    is_folded, is_beside = _role(world_size, rank)
    held = _held(numel, world_size, rank)
    if is_folded:
        return numel * itemsize
    given_away = held[0] - held[-1]
    return itemsize * (given_away + sum(held[1:]) + is_beside * numel)


def halving_doubling_all_reduce_messages(
    numel: int, itemsize: int, world_size: int, rank: int, block_bytes: int
) -> int:
    """Messages that `rank` sends. What is to be added goes in blocks, and what is added, whole."""
    is_folded, is_beside = _role(world_size, rank)
    if is_folded:
        return num_blocks(numel, itemsize, block_bytes)
    held = _held(numel, world_size, rank)
    given_away = (before - after for before, after in zip(held, held[1:], strict=False))
    halving = sum(num_blocks(given, itemsize, block_bytes) for given in given_away)
    return halving + len(held) - 1 + is_beside


def halving_doubling_all_reduce_steps(world_size: int) -> int:
    """Steps one after the other. 6 for 8 ranks, where a ring takes 14; 6 for 7 ranks too."""
    world_size = check_ranks(world_size)
    power = _log2(world_size)
    return 2 * power + 2 * (world_size > 2**power)


def halving_doubling_all_reduce_seconds(nbytes: float, n: int, alpha: float, beta: float) -> float:
    """Seconds of two steps each of D/2, D/4 and so on, and for n other than p, of D.

    What is to be added goes in blocks, but nothing waits for one: they are not in the formula.
    """
    n = check_ranks(n, "n")
    check_not_negative(nbytes, "nbytes")
    check_link(alpha, beta)
    sizes = [nbytes / 2**step for step in range(1, _log2(n) + 1)]
    if n > 2 ** _log2(n):
        sizes.append(nbytes)
    return 2 * sum(alpha + size * beta for size in sizes)


def _role(world_size: int, rank: int) -> tuple[bool, bool]:
    """Whether it is folded into the rank beside it, and whether another is folded into it."""
    rank, world_size = check_rank(rank, world_size), int(world_size)
    is_one_of_two = rank < 2 * (world_size - 2 ** _log2(world_size))
    return is_one_of_two and rank % 2 == 0, is_one_of_two and rank % 2 == 1


def _held(numel: int, world_size: int, rank: int) -> list[int]:
    """Elements that a working rank has left after 0, 1, ... log2 p halvings."""
    numel, rank, world_size = check_numel(numel), int(rank), int(world_size)
    power = _log2(world_size)
    num_folded = world_size - 2**power
    number = rank - min(num_folded, (rank + 1) // 2)  # as many are folded before it
    return [len(range(number % 2**step, numel, 2**step)) for step in range(power + 1)]


def _log2(world_size: int) -> int:
    return world_size.bit_length() - 1
