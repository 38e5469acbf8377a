"""GPipe: all forwards, then all backwards.

An interviewer asks: "You cut a model by layers over 4 GPUs. Why does one batch keep only one GPU at
a time busy, and what do microbatches change? Write down what each GPU does in a step, in order. For
which share of the time is a GPU idle, and how do you make that share smaller?"

Write `gpipe_schedule(rank, num_ranks, num_microbatches)`: the row of one rank. A row is the list of
the rank's operations in one step, in order.

    rank              0 to num_ranks - 1; rank r holds stage r, the r-th part of the layers
    num_ranks         p, 1 or more
    num_microbatches  m, 1 or more: the batch is cut into m equal parts. m may be smaller than p
    returns           a list of cells, or a generator of them. A cell is text: "F3" is the forward
                      of microbatch 3, "B3" its backward. Microbatches are counted from 0

A row has no times and no cells for waiting. A rank performs its row in order. It waits when the
input of its next operation has not arrived: F3 needs F3 of the rank before, B3 needs the rank's own
F3 and B3 of the rank after. In time the rows of 3 ranks and 2 microbatches look like this:

    rank 0  F0 F1 .  .  .  .  B0 B1
    rank 1  .  F0 F1 .  .  B0 B1 .
    rank 2  .  .  F0 F1 B0 B1 .  .

Contract
    validity  every rank has F and B of each microbatch exactly once, and no ranks wait for each
              other forever
    order     on every rank all forwards come before all backwards
    time      with f for a forward, b for a backward and no time for messages the step takes
              (m + p - 1)(f + b), for any f and b. A rank works for m (f + b); its idle time, the
              bubble, is (p - 1)/m of that
    never     labkit.pipeline. The answer is a few lines

Paper: Huang et al., "GPipe", arXiv:1811.06965.
"""

from collections.abc import Iterable


def gpipe_schedule(rank: int, num_ranks: int, num_microbatches: int) -> Iterable[str]:
    """Return the cells of one rank, in the order in which it performs them."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
