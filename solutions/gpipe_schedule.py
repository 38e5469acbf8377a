"""GPipe: all forwards, then all backwards.

An interviewer asks: "You cut a model by layers over 4 GPUs. Why is that four times slower than it
sounds, and what do microbatches change? Write down what each GPU does in a step, in order. How long
does it stand still, as a share of the time, and how do you make that smaller?"

Write `gpipe_schedule(rank, num_ranks, num_microbatches)`: what one rank does, in order.

    rank              0 to num_ranks - 1; rank r holds stage r, the r-th part of the layers
    num_microbatches  1 or more, each an equal part of the batch; there may be fewer than ranks
    returns           a list of cells, or a generator of them. A cell is text: "F3" is the forward
                      of microbatch 3, "B3" its backward. Both are counted from 0

A row has no times. A rank performs it in order, and waits where something has not come: F3 needs F3
of the rank before, B3 needs the rank's own F3 and B3 of the rank after. In time it looks like this:

    rank 0  F0 F1 .  .  .  .  B0 B1
    rank 1  .  F0 F1 .  .  B0 B1 .
    rank 2  .  .  F0 F1 B0 B1 .  .

Contract
    validity  each microbatch goes once forward and once back through every stage, and no rank waits
              for ever
    order     no forward behind a backward
    time      with f for a forward and b for a backward the step takes (m + p - 1)(f + b), for any
              f and b: a bubble of (p - 1)/m of the ideal time m (f + b)
    never     labkit.pipeline. It is a few lines

Paper: Huang et al., "GPipe", arXiv:1811.06965.
"""

from collections.abc import Iterable


def gpipe_schedule(rank: int, num_ranks: int, num_microbatches: int) -> Iterable[str]:
    """The cells of one rank, in the order in which it performs them."""
    ### BEGIN SOLUTION
    forwards = [f"F{microbatch}" for microbatch in range(num_microbatches)]
    # The same order: the last rank's first backward is what everybody waits for.
    backwards = [f"B{microbatch}" for microbatch in range(num_microbatches)]
    return forwards + backwards
    ### END SOLUTION
