"""1F1B: GPipe's bubble, with the memory of p microbatches in the place of m.

An interviewer asks: "Your pipeline has 8 stages, and to keep the bubble small you run 64
microbatches. With GPipe stage 0 holds the activations of all 64. Change the order, so that it holds
8, and nobody stands still for longer. How many does the last stage hold?"

Write `one_f_one_b_schedule(rank, num_ranks, num_microbatches)`: what one rank does, in order.

    rank              0 to num_ranks - 1; rank r holds stage r
    num_microbatches  1 or more; there may be fewer than ranks
    returns           a list of cells, or a generator of them: "F3" is the forward of microbatch 3,
                      "B3" its backward, both counted from 0

A row has no times. A rank performs it in order, and waits where something has not come: F3 needs F3
of the rank before, B3 needs the rank's own F3 and B3 of the rank after.

Contract
    validity  each microbatch goes once forward and once back through every stage, and no rank waits
              for ever
    time      with f for a forward and b for a backward the step takes (m + p - 1)(f + b), for any
              f and b: a bubble of (p - 1)/m of the ideal time m (f + b)
    memory    rank r holds the activations of p - r microbatches at most: those of which it has done
              the forward, and not yet the backward
    never     labkit.pipeline. It is a few lines

Papers: Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (PipeDream-Flush),
arXiv:2006.09503. Fan et al., DAPPLE, arXiv:2007.01045.
"""

from collections.abc import Iterable


def one_f_one_b_schedule(rank: int, num_ranks: int, num_microbatches: int) -> Iterable[str]:
    """The cells of one rank, in the order in which it performs them."""
    ### BEGIN SOLUTION
    warmup = min(num_ranks - rank - 1, num_microbatches)  # one for each rank that comes after
    for microbatch in range(warmup):
        yield f"F{microbatch}"
    for microbatch in range(warmup, num_microbatches):
        yield f"F{microbatch}"
        yield f"B{microbatch - warmup}"  # the one that has been under way for longest
    for microbatch in range(num_microbatches - warmup, num_microbatches):
        yield f"B{microbatch}"
    ### END SOLUTION
