"""Interleaved 1F1B: several small stages on each rank, and a fraction of the bubble.

An interviewer asks: "8 stages and 16 microbatches: a bubble of 44%. The batch has no room for more
microbatches. Megatron gives each GPU two or four parts of the model instead of one. Why does that
make the bubble smaller, what does it cost, and in which order does a GPU work on its parts?"

Write `interleaved_schedule(rank, num_ranks, num_microbatches, virtual)`: the row of one rank. A row
is the list of the rank's operations in one step, in order.

    rank              0 to num_ranks - 1
    num_ranks         p, 1 or more
    num_microbatches  m, a multiple of p
    virtual           v, the stages per rank, 2 or more. The model has p v stages, and stage s is on
                      rank s mod p: with p = 2 and v = 2 rank 0 holds the stages 0 and 2
    returns           a list of cells, or a generator of them. A cell is text: "F3@2" is the forward
                      of microbatch 3 through stage 2, "B3@2" its backward. Microbatches and stages
                      are counted from 0

A row has no times and no cells for waiting. A rank performs its row in order. It waits when the
input of its next operation has not arrived: F3@2 needs F3@1, B3@2 needs the rank's own F3@2, and
B3@3.

Contract
    validity  every rank has F and B of each microbatch exactly once for each of its stages, and
              no ranks wait for each other forever
    time      with f and b for a forward and a backward of one small stage the step takes
              (v m + p - 1)(f + b). The bubble is (p - 1)/(v m) of a rank's working time v m (f + b)
    messages  with a time s for each message between two ranks, s <= f and s <= b, the step takes at
              most (v m + p - 1)(f + b) + 2 (p v - 1) s. The second term is the messages of one
              microbatch through the model and back. With p = 1 there are no messages
    memory    rank r holds at most min((v - 1) p + 2 (p - r - 1) + 1, v m) activations. An
              activation is of one microbatch in one small stage, from its forward to its backward
    never     labkit.pipeline. The answer is a few lines

Paper: Narayanan et al., "Efficient large-scale language model training on GPU clusters",
arXiv:2104.04473, section 2.2.
"""

from collections.abc import Iterable


def interleaved_schedule(
    rank: int, num_ranks: int, num_microbatches: int, virtual: int
) -> Iterable[str]:
    """Return the cells of one rank, in the order in which it performs them."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
