"""ZB-H1: the weights' gradients wait until the rank would otherwise stand still.

    B is two products of about a forward's cost each: the gradient of the input (I), for which the
    rank before waits, and that of the weights (W), for which nobody does.

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

    Bubble for m >= p, and W no longer than F and I: (p - 1)(F + I - W) in the place of 1F1B's
    (p - 1)(F + I + W): a third of it, if F = I = W. A rank holds p microbatches, or what is left of
    them for their W: as many as 1F1B's first rank, but here that is every rank.
    """
    warmup = min(num_ranks - rank - 1, num_microbatches)
    num_weights = 0
    for microbatch in range(warmup):
        yield Op(F, rank, microbatch)
    for microbatch in range(num_microbatches):
        if microbatch + warmup < num_microbatches:
            yield Op(F, rank, microbatch + warmup)
        yield Op(I, rank, microbatch)
        if microbatch >= rank:
            yield Op(W, rank, num_weights)
            num_weights += 1
    for microbatch in range(num_weights, num_microbatches):
        yield Op(W, rank, microbatch)
