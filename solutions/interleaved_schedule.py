"""Interleaved 1F1B: several small stages on each rank, and a fraction of the bubble.

An interviewer asks: "8 stages and 16 microbatches: a bubble of 44%. More microbatches do not fit
into the batch. Megatron gives each GPU two or four pieces of the model and not one. Why does that
make the bubble smaller, what does it cost, and in which order does a GPU work on its pieces?"

Write `interleaved_schedule(rank, num_ranks, num_microbatches, virtual)`: what one rank does, in
order.

    rank              0 to num_ranks - 1
    virtual           stages per rank, v, 2 or more. The model has p v stages, and stage s is on
                      rank s mod p: with p = 2 and v = 2 rank 0 holds the stages 0 and 2
    num_microbatches  m, a multiple of num_ranks
    returns           a list of cells, or a generator of them. "F3@2" is the forward of microbatch 3
                      through stage 2, "B3@2" its backward; all are counted from 0

A rank performs its row in order, and waits where something has not come: F3@2 needs F3@1, B3@2
needs the rank's own F3@2, and B3@3.

Contract
    validity  each microbatch goes once forward and once back through every stage, and no rank waits
              for ever
    time      with f and b for a forward and a backward of one of the small stages the step takes
              (v m + p - 1)(f + b): a bubble of (p - 1)/(v m) of the ideal time
    messages  where each message between ranks takes s, at most as long as f and as b, there comes
              nothing to that but one microbatch's way through the model and back: 2 (p v - 1) s,
              for p > 1
    memory    rank r holds at most min((v - 1) p + 2 (p - r - 1) + 1, v m) activations, each of one
              microbatch in one small stage, from its forward to its backward
    never     labkit.pipeline. It is a few lines

Paper: Narayanan et al., "Efficient large-scale language model training on GPU clusters",
arXiv:2104.04473, section 2.2.
"""

from collections.abc import Iterable


def interleaved_schedule(
    rank: int, num_ranks: int, num_microbatches: int, virtual: int
) -> Iterable[str]:
    """The cells of one rank, in the order in which it performs them."""
    ### BEGIN SOLUTION
    # Round by round: p microbatches through the first stage, the same p through the second, ...
    forwards, backwards = [], []
    for first in range(0, num_microbatches, num_ranks):
        for turn in range(virtual):
            for microbatch in range(first, first + num_ranks):
                forwards.append(f"F{microbatch}@{turn * num_ranks + rank}")
                # Backward comes from the end of the model: the last stage is the first.
                backwards.append(f"B{microbatch}@{(virtual - 1 - turn) * num_ranks + rank}")
    # All turns but the last, and each rank behind twice: with once, messages would not be hidden.
    warmup = min((virtual - 1) * num_ranks + 2 * (num_ranks - rank - 1), len(forwards))
    yield from forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards):
        yield forward
        yield backward
    yield from backwards[len(forwards) - warmup :]
    ### END SOLUTION
