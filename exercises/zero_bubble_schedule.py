"""A zero-bubble schedule: 1F1B with split backwards, and a third of its bubble.

An interviewer asks: "A backward computes two things: the gradient of the stage's input, and the
gradients of its weights. Which rank waits for the first, and who waits for the second? Split the
backward, and move what can be moved into the bubble of 1F1B. How small does the bubble get if no
rank may hold more activations than the first rank does in 1F1B?"

Write `zero_bubble_schedule(rank, num_ranks, num_microbatches)`: the row of one rank. A row is the
list of the rank's operations in one step, in order.

    rank              0 to num_ranks - 1; rank r holds stage r
    num_ranks         p, 1 or more
    num_microbatches  m, 1 or more; m may be smaller than p
    returns           a list of cells, or a generator of them. A cell is text: "F3" is the forward
                      of microbatch 3, "I3" the gradient of the stage's input, "W3" the gradients of
                      its weights. "B3" is I3 followed by W3 as one operation. Microbatches are
                      counted from 0

A row has no times and no cells for waiting. A rank performs its row in order. It waits when the
input of its next operation has not arrived: F3 needs F3 of the rank before; I3 needs the rank's own
F3, and I3 or B3 of the rank after; W3 needs the rank's own I3.

Contract
    validity  every rank has F, I and W of each microbatch exactly once, where a B counts as I and
              W, and no ranks wait for each other forever
    time      F, I and W stand for the durations too; messages take none. For all durations with
              W <= F and W <= I, and for any m, the step takes at most
                  m (F + I + W) + (p - 1)(F + I - W) + max(0, p - m) W
              With F = I = W = 1 and m >= p this is 3 m + p - 1; 1F1B takes 3 m + 3 (p - 1). The
              function does not get the durations: the same row is used for all of them
    memory    no rank holds more than min(p, m) microbatches. A rank holds those whose F it has done
              and whose W it has not done
    never     labkit.pipeline. The answer is a few lines

Paper: Qi et al., "Zero bubble pipeline parallelism", arXiv:2401.10241, sections 2 and 4.
"""

from collections.abc import Iterable


def zero_bubble_schedule(rank: int, num_ranks: int, num_microbatches: int) -> Iterable[str]:
    """Return the cells of one rank, in the order in which it performs them."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
