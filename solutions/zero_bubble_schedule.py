"""A zero-bubble schedule: a third of 1F1B's bubble, from backwards that are split.

An interviewer asks: "A backward computes two things: the gradient of the stage's input, and those
of its weights. Who waits for the one, and who for the other? Split it, and move what can be moved
into the bubble of 1F1B. How small does it get, if no rank may hold more than before?"

Write `zero_bubble_schedule(rank, num_ranks, num_microbatches)`: what one rank does, in order.

    rank              0 to num_ranks - 1; rank r holds stage r
    num_microbatches  1 or more; there may be fewer than ranks
    returns           a list of cells, or a generator of them. "F3" is the forward of microbatch 3,
                      "I3" the gradient of the stage's input, "W3" those of its weights; "B3" is I3
                      and W3 in one go. All are counted from 0

A rank performs its row in order, and waits where something has not come: F3 needs F3 of the rank
before; I3 needs the rank's own F3 and I3 (or B3) of the rank after; W3 needs the rank's own I3.

Contract
    validity  each microbatch goes once forward through every stage, and once through both halves of
              the backward, and no rank waits for ever
    time      with F = I = W = 1 and m of p or more the step takes 3 m + p - 1 at most, where 1F1B
              takes 3 m + 3 (p - 1). For other costs, W no longer than F and no longer than I,
              and for any m: m (F + I + W) + (p - 1)(F + I - W) + max(0, p - m) W. One row
              for all costs
    memory    no rank holds more than min(p, m) microbatches: those of which it has done the
              forward, and not yet the W
    never     labkit.pipeline. It is a few lines

Paper: Qi et al., "Zero bubble pipeline parallelism", arXiv:2401.10241, sections 2 and 4.
"""

from collections.abc import Iterable


def zero_bubble_schedule(rank: int, num_ranks: int, num_microbatches: int) -> Iterable[str]:
    """The cells of one rank, in the order in which it performs them."""
    ### BEGIN SOLUTION
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for microbatch in range(warmup):
        yield f"F{microbatch}"
    for microbatch in range(num_microbatches):
        if warmup + microbatch < num_microbatches:
            yield f"F{warmup + microbatch}"
        yield f"I{microbatch}"
        # 1F1B holds p - rank microbatches here: there is room for as many W put off.
        if microbatch >= rank:
            yield f"W{microbatch - rank}"
    for microbatch in range(max(0, num_microbatches - rank), num_microbatches):
        yield f"W{microbatch}"
    ### END SOLUTION
