"""Synchronous schedules: all microbatches of a step, then one update. p ranks, m microbatches.

                   bubble / ideal time      microbatches in flight      messages per rank
    naive          p - 1                    1                           2 m
    gpipe          (p - 1) / m              m                           2 m
    one_f_one_b    (p - 1) / m              p - r, on rank r            2 m
    interleaved    (p - 1) / (v m)          (v-1)p + 2(p-r-1) + 1 (*)   2 m v

(*) of stages with 1/v of a rank's layers. Each function yields the operations of one rank. `plan`
makes a Schedule of all ranks.

Zero-bubble schedules split every backward into two products, each about as expensive as a forward:
the gradient of the input (I), which the rank before needs, and that of the weights (W), which no
other rank needs. A rank computes W when it would otherwise be idle.

ZB-H1 and ZB-H2 are 1F1B with every backward split. They differ in the number of forwards before the
first I, and in how many microbatches W lags behind I:

                      forwards before the first I    W lags by    in flight on every rank
    zero_bubble_h1    p - r                          r            p, as on 1F1B's first rank
    zero_bubble_h2    2 (p - r) - 1                  2 r          2 p - 1, about twice as many

ZB-V has two stages on each rank. Stages go down the ranks and up again, in the shape of a V:

    stage     0  1  2  3          Rank r holds the stages r and 2p - 1 - r. The last rank's two are
    rank      0  1  2  3          neighbours. Rank 0 has the model's first stage and its last, so it
    stage     7  6  5  4          has the loss, and a weight that embedding and head share.

A microbatch that is back on rank 0 can start its backward there at once: no rank waits for the far
end of the pipeline.

Papers: Qi et al., "Zero bubble pipeline parallelism", arXiv:2401.10241, sections 2 and 6;
"Pipeline parallelism with controllable memory", arXiv:2405.15362.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from labkit.pipeline.op import Kind, Op

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741


def naive(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Yield F and B of one microbatch after another: only one of p ranks works at a time.

    rank 0   F0          B0 F1          B1
    rank 1      F0    B0       F1    B1
    rank 2         F0 B0          F1 B1
    """
    for microbatch in range(num_microbatches):
        yield Op(F, rank, microbatch)
        yield Op(B, rank, microbatch)


def gpipe(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Yield all forwards, then all backwards: every microbatch's activations are held at once.

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
    """Yield the fewest forwards that keep later ranks busy, then one backward for each forward.

    rank 0   F0 F1 F2       B0 F3    B1    B2    B3        warmup: p - rank - 1 forwards
    rank 1      F0 F1    B0 F2 B1 F3 B2       B3           steady: a forward, a backward
    rank 2         F0 B0 F1 B1 F2 B2 F3 B3                 cooldown: the backwards that are left

    The bubble is GPipe's, but a rank frees a microbatch before it takes the next one. If messages
    take time, the step is longer than GPipe's. In the steady state of 1F1B each rank waits for a
    message there and back in every turn. In GPipe ranks wait for messages only while the pipeline
    fills and drains.
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
    """Yield 1F1B over `virtual` stages per rank, stage s on rank s mod p: a shorter fill and drain.

    p = 2, v = 2: rank 0 holds stages 0 and 2, rank 1 holds stages 1 and 3. Microbatches go in
    rounds of p: p of them through a rank's first stage, the same p through its second stage, then
    the next p. So m must be a multiple of p (ValueError). With virtual=1 this is 1F1B.
    Paper: Narayanan et al., arXiv:2104.04473, section 2.2.
    """
    p, m = num_ranks, num_microbatches
    if m % p:
        multiples = sorted({max(p, m - m % p), m - m % p + p})
        raise ValueError(
            f"num_microbatches={m} is no multiple of num_ranks={p}, but an interleaved schedule "
            f"goes in rounds of {p}; try {' or '.join(map(str, multiples))}"
        )
    if virtual == 1:
        yield from one_f_one_b(rank, p, m)
        return

    def nth(kind: Kind, n: int) -> Op:
        rounds, within = divmod(n, p * virtual)
        chunk, microbatch = divmod(within, p)
        chunk = chunk if kind is F else virtual - 1 - chunk  # backward starts at the last stage
        return Op(kind, chunk * p + rank, rounds * p + microbatch)

    total = m * virtual
    # p forwards on each stage but the last, and twice the distance to the last rank. Once the
    # distance is enough if messages take no time. Otherwise ranks would wait in every turn.
    warmup = min(2 * (p - rank - 1) + (virtual - 1) * p, total)
    for n in range(warmup):
        yield nth(F, n)
    for n in range(warmup, total):
        yield nth(F, n)
        yield nth(B, n - warmup)
    for n in range(total - warmup, total):
        yield nth(B, n)


def zero_bubble_h1(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Yield 1F1B with every backward split. On rank r, W lags r microbatches behind I.

    p = 3, all of equal cost
    rank 0   F0 F1 F2    I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1      F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

    Bubble for m >= p, and W no longer than F and I: (p - 1)(F + I - W) instead of 1F1B's
    (p - 1)(F + I + W), which is a third if F = I = W. Every rank holds p microbatches, some of them
    only what W needs: as many as 1F1B's first rank.
    """
    return _split_backward(rank, num_microbatches, num_ranks - rank - 1, lag=rank)


def zero_bubble_h2(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Yield twice ZB-H1's forwards before the first I: no rank waits after its first operation.

    p = 3, m = 5, all of equal cost
    rank 0   F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
    rank 1      F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
    rank 2         F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

    The paper counts a rank's time from its own first operation to its last. Then the bubble is 0
    for F = I = W and m >= 2p - 1. From the first rank's start to the last rank's end a step is
    still (p - 1) F longer than a rank's work, since rank r starts and ends r forwards late. The
    next step can start just as staggered, unless a barrier, such as a global norm, comes first.
    """
    return _split_backward(rank, num_microbatches, 2 * (num_ranks - rank - 1), lag=2 * rank)


def _split_backward(rank: int, num_microbatches: int, warmup: int, lag: int) -> Iterator[Op]:
    """Yield `warmup` forwards, turns of F, I and the W of `lag` turns ago, and the other Ws."""
    warmup = min(warmup, num_microbatches)
    num_weights = 0
    for microbatch in range(warmup):
        yield Op(F, rank, microbatch)
    for microbatch in range(num_microbatches):
        if microbatch + warmup < num_microbatches:
            yield Op(F, rank, microbatch + warmup)
        yield Op(I, rank, microbatch)
        if microbatch >= lag:
            yield Op(W, rank, num_weights)
            num_weights += 1
    for microbatch in range(num_weights, num_microbatches):
        yield Op(W, rank, microbatch)


def zero_bubble_v(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Yield turns of F, I and W of the rank's two stages, and remaining Ws near the end.

    p = 2, m = 3, stages of equal cost: `F0` of the stage on the way down, `f0` of the one up
    rank 0   F0 F1 F2 f0 i0 w0 f1 i1 w1 I0 W0 f2 i2 w2 I1 W1 I2 W2
    rank 1      F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 I1 i2 I2 W1 w2 W2

    Bubble for F = I = W and m >= 2p - 1: a rank is idle for p - 1 operations of its half-size
    stages, a sixth of 1F1B's idle time and half of ZB-H1's. With other costs or fewer microbatches
    the bubble is larger. A rank holds 2p half microbatches, as much as 1F1B's first rank.
    """
    p, m, down, up = num_ranks, num_microbatches, rank, 2 * num_ranks - 1 - rank
    turn_down, turn_up = [(F, down), (I, down), (W, down)], [(F, up), (I, up), (W, up)]
    pattern = (
        [(F, down)] * (2 * (p - rank) - 1)  # until the first microbatch is back up
        + [(F, up), (F, down)] * rank
        + turn_up * (p - rank)
        + (turn_down + turn_up) * max(0, m - p)
        + [(I, down), (I, up)] * rank  # the ranks before wait for these, and for no W
        + [(I, down), (W, down)] * (p - rank)
        + [(kind, stage) for stage in (up, down) for kind in (I, W) for _ in range(m)]
    )
    done: Counter[tuple[Kind, int]] = Counter()
    for kind, stage in pattern:
        if done[kind, stage] < m:  # the pattern may have more operations than microbatches
            yield Op(kind, stage, done[kind, stage])
            done[kind, stage] += 1
