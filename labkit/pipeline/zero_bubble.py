"""ZB-H1 and ZB-H2: the weights' gradients wait until the rank would otherwise be idle.

    B is two products of about a forward's cost each: the gradient of the input (I), for which the
    rank before waits, and that of the weights (W), for which no rank waits.

Both are 1F1B with every backward split. They differ in how many forwards come before the first I,
and in how many weight gradients a rank is behind:

                      forwards before the first I    behind by    held by every rank
    zero_bubble_h1    p - r                          r            p, as 1F1B's first rank
    zero_bubble_h2    2 (p - r) - 1                  2 r          2 p - 1, about twice as much

Paper: Qi et al., "Zero bubble pipeline parallelism", arXiv:2401.10241, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator

from labkit.pipeline.op import Kind, Op

F, I, W = Kind.F, Kind.I, Kind.W  # noqa: E741


def zero_bubble_h1(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """1F1B with every backward split; rank r is r weight gradients behind, and ends with them.

    p = 3, all of equal cost
    rank 0   F0 F1 F2    I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1      F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

    Bubble for m >= p, and W no longer than F and I: (p - 1)(F + I - W) instead of 1F1B's
    (p - 1)(F + I + W): a third of it, if F = I = W. A rank holds p microbatches, or what is left of
    them for their W: as many as 1F1B's first rank, but here that is every rank.
    """
    return _split_backward(rank, num_microbatches, num_ranks - rank - 1, behind=rank)


def zero_bubble_h2(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Twice the forwards of ZB-H1 before the first I: from its first operation no rank waits.

    p = 3, m = 5, all of equal cost
    rank 0   F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
    rank 1      F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
    rank 2         F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

    The paper counts a rank's time from its own first operation to its last: then the bubble is 0
    for F = I = W and m >= 2p - 1. A step from the first rank's start to the last rank's end is
    still (p - 1) F longer than its work, for rank r starts and ends r forwards late. A following
    step can begin as staggered, if no barrier, such as a global gradient norm, stands between.
    """
    return _split_backward(rank, num_microbatches, 2 * (num_ranks - rank - 1), behind=2 * rank)


def _split_backward(rank: int, num_microbatches: int, warmup: int, behind: int) -> Iterator[Op]:
    """`warmup` forwards; turns of F, I and a W that is `behind` by so many; the W that are left."""
    warmup = min(warmup, num_microbatches)
    num_weights = 0
    for microbatch in range(warmup):
        yield Op(F, rank, microbatch)
    for microbatch in range(num_microbatches):
        if microbatch + warmup < num_microbatches:
            yield Op(F, rank, microbatch + warmup)
        yield Op(I, rank, microbatch)
        if microbatch >= behind:
            yield Op(W, rank, num_weights)
            num_weights += 1
    for microbatch in range(num_weights, num_microbatches):
        yield Op(W, rank, microbatch)
