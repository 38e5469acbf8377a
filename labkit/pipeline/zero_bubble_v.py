"""ZB-V: two stages on each rank, down the ranks and up again, so that both ends are on rank 0.

    stage     0  1  2  3          rank r holds the stages r and 2p - 1 - r. The last rank's two are
    rank      0  1  2  3          neighbours; rank 0 has the model's first stage and its last, and
    stage     7  6  5  4          so the loss, and a weight that embedding and head share.

A microbatch that has come back up can go down again in backward at once, on rank 0 first: nobody
waits for the far end of a pipeline.

Paper: Qi et al., "Zero bubble pipeline parallelism", arXiv:2401.10241, section 6; "Pipeline
parallelism with controllable memory", arXiv:2405.15362.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from labkit.pipeline.op import Kind, Op

F, I, W = Kind.F, Kind.I, Kind.W  # noqa: E741


def zero_bubble_v(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Full turns of F, I and W of either stage in the middle, and W where there is room at the end.

    p = 2, m = 3, stages of equal cost: `F0` of the stage on the way down, `f0` of the one up
    rank 0   F0 F1 F2 f0 i0 w0 f1 i1 w1 I0 W0 f2 i2 w2 I1 W1 I2 W2
    rank 1      F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 I1 i2 I2 W1 w2 W2

    Bubble for F = I = W and m >= 2p - 1: a rank is idle for p - 1 operations of its half-size
    stages, a sixth of 1F1B's time and a half of ZB-H1's. With other costs it is more. A rank holds
    2p halves of a microbatch, as much as 1F1B's first. Fewer microbatches work, and wait longer.
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
        if done[kind, stage] < m:  # what the pattern has more of than there are microbatches
            yield Op(kind, stage, done[kind, stage])
            done[kind, stage] += 1
