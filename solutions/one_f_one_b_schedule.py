"""1F1B: the bubble of GPipe, with the memory of p microbatches instead of m.

An interviewer asks: "Your pipeline has 8 stages. To keep the bubble small you run 64 microbatches.
With GPipe stage 0 holds the activations of all 64. Change the order so that stage 0 holds 8 and no
rank is idle for longer than before. How many does the last stage hold?"

Write `one_f_one_b_schedule(rank, num_ranks, num_microbatches)`: the row of one rank. A row is the
list of the rank's operations in one step, in order.

    rank              0 to num_ranks - 1; rank r holds stage r
    num_ranks         p, 1 or more
    num_microbatches  m, 1 or more; m may be smaller than p
    returns           a list of cells, or a generator of them. A cell is text: "F3" is the forward
                      of microbatch 3, "B3" its backward. Microbatches are counted from 0

A row has no times and no cells for waiting. A rank performs its row in order. It waits when the
input of its next operation has not arrived: F3 needs F3 of the rank before, B3 needs the rank's own
F3 and B3 of the rank after.

Contract
    validity  every rank has F and B of each microbatch exactly once, and no ranks wait for each
              other forever
    time      with f for a forward, b for a backward and no time for messages the step takes
              (m + p - 1)(f + b), for any f and b. This is GPipe's time
    memory    rank r holds the activations of at most p - r microbatches. A rank holds those whose
              forward it has done and whose backward it has not done
    never     labkit.pipeline. The answer is a few lines

Papers: Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (PipeDream-Flush),
arXiv:2006.09503. Fan et al., DAPPLE, arXiv:2007.01045.
"""

from collections.abc import Iterable


def one_f_one_b_schedule(rank: int, num_ranks: int, num_microbatches: int) -> Iterable[str]:
    """Yield the operations of one rank in order: "F3" is the forward of microbatch 3."""
    ### BEGIN SOLUTION
    warmup = min(num_ranks - rank - 1, num_microbatches)  # one for each rank after this one
    for microbatch in range(warmup):
        yield f"F{microbatch}"
    for microbatch in range(warmup, num_microbatches):
        yield f"F{microbatch}"
        yield f"B{microbatch - warmup}"  # the oldest microbatch in flight
    for microbatch in range(num_microbatches - warmup, num_microbatches):
        yield f"B{microbatch}"
    ### END SOLUTION
