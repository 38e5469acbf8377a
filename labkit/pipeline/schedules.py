"""Synchronous schedules: all microbatches of a step, then one update. p ranks, m microbatches.

                 bubble, of ideal time    held at once by rank r      messages per rank
    naive        p - 1                    1                           2 m
    gpipe        (p - 1) / m              m                           2 m
    one_f_one_b  (p - 1) / m              p - r                       2 m
    interleaved  (p - 1) / (v m)          (v-1)p + 2(p-r-1) + 1       2 m v, of stages a v-th
                                          v-ths of a microbatch       as deep

Each yields what one rank does. Compute them side by side with `plan`.
"""

from __future__ import annotations

from collections.abc import Iterator

from labkit import arguments
from labkit.pipeline.op import Kind, Op

F, B = Kind.F, Kind.B


def naive(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """One microbatch after another, each forward and back: of p ranks one works at a time.

    rank 0   F0          B0 F1          B1
    rank 1      F0    B0       F1    B1
    rank 2         F0 B0          F1 B1
    """
    for microbatch in range(num_microbatches):
        yield Op(F, rank, microbatch)
        yield Op(B, rank, microbatch)


def gpipe(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """All forwards, then all backwards: every microbatch's activations are held at once.

    rank 0   F0 F1 F2 F3             B0 B1 B2 B3
    rank 1      F0 F1 F2 F3       B0 B1 B2 B3
    rank 2         F0 F1 F2 F3 B0 B1 B2 B3

    Paper: Huang et al., GPipe, arXiv:1811.06965.
    """
    for microbatch in range(num_microbatches):
        yield Op(F, rank, microbatch)
    for microbatch in range(num_microbatches):
        yield Op(B, rank, microbatch)


def one_f_one_b(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """1F1B: as few forwards as keep the later ranks busy, then one backward for each forward.

    rank 0   F0 F1 F2       B0 F3    B1    B2    B3        warmup: p - rank - 1 forwards
    rank 1      F0 F1    B0 F2 B1 F3 B2       B3           steady: a forward, a backward
    rank 2         F0 B0 F1 B1 F2 B2 F3 B3                 cooldown: the backwards that are left

    GPipe's bubble, but a rank lets go of a microbatch before it takes in the next. With messages
    that take time it is longer: in the steady state each rank waits for a message there and back
    in every turn, GPipe only while it fills and drains.
    Paper: Narayanan et al., PipeDream-Flush, arXiv:2006.09503.
    """
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for microbatch in range(warmup):
        yield Op(F, rank, microbatch)
    for microbatch in range(warmup, num_microbatches):
        yield Op(F, rank, microbatch)
        yield Op(B, rank, microbatch - warmup)
    for microbatch in range(num_microbatches - warmup, num_microbatches):
        yield Op(B, rank, microbatch)


def interleaved(rank: int, num_ranks: int, num_microbatches: int, virtual: int = 2) -> Iterator[Op]:
    """1F1B over `virtual` stages per rank: stage s is on rank s mod p, so fill and drain are short.

    p = 2, v = 2: rank 0 holds the stages 0 and 2, rank 1 holds 1 and 3. Microbatches go round in
    groups of p: p of them through a rank's first stage, the same p through its second, then
    the next p. So m must be a multiple of p (ValueError). With virtual=1 it is 1F1B.
    Paper: Narayanan et al., arXiv:2104.04473, section 2.2.
    """
    p, m = num_ranks, num_microbatches
    arguments.whole("virtual", virtual, "1 or more stages per rank")
    if m % p:
        raise ValueError(
            f"num_microbatches={m} is no multiple of num_ranks={p}, and an interleaved schedule "
            f"goes in rounds of {p}; try {m - m % p or p} or {m - m % p + p}"
        )
    if virtual == 1:
        yield from one_f_one_b(rank, p, m)
        return

    def nth(kind: Kind, n: int) -> Op:
        rounds, within = divmod(n, p * virtual)
        turn, microbatch = divmod(within, p)
        turn = turn if kind is F else virtual - 1 - turn  # backward comes from the last stage
        return Op(kind, turn * p + rank, rounds * p + microbatch)

    total = m * virtual
    # All turns but the last, and the distance to the last rank twice: with once, a step with free
    # messages would be as short, but with others ranks would wait for them in every turn.
    warmup = min(2 * (p - rank - 1) + (virtual - 1) * p, total)
    for n in range(warmup):
        yield nth(F, n)
    for n in range(warmup, total):
        yield nth(F, n)
        yield nth(B, n - warmup)
    for n in range(total - warmup, total):
        yield nth(B, n)
