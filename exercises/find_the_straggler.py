"""Find the rank that makes all others wait, and what a step would gain without it.

An interviewer asks: "Training on 512 GPUs got 30% slower. In the profile the all-reduces take twice
as long as before. Is it the network, or is one rank late? How do you tell, and which rank is it?"

Write `find_the_straggler(steps, least)`. It gets the times of all collectives of several steps.

Contract
    steps    steps[i] is a list with the collectives of step i, in order. A collective is a list
             with a tuple (arrival, end) for each rank, by rank: when the rank called it, and when
             it returned. All ranks take part in all collectives. A collective returns on all ranks
             at the same moment, some time after the last rank has called it
             The times are ints, in microseconds, by the clock of the rank's host. The clocks differ
             by amounts that are not known, and stay the same during the run
    least    a gain smaller than this, in microseconds, is noise
    returns  (rank, gain) of the straggler, or None if there is none
    A rank's gain in a collective: how much later it arrived than the last of the other ranks. For
    all ranks but the last to arrive it is 0
    A rank's gain in a step: the sum over the step's collectives
    A rank's gain: the median over all steps. Their number is odd. One slow step, such as a rank's
    checkpoint, makes no straggler
    The straggler is the rank with the largest gain, if that is `least` or more. No two ranks share
    the largest gain. There are 3 ranks or more, and each step has a collective.
"""

Collective = list[tuple[int, int]]


def find_the_straggler(steps: list[list[Collective]], least: int) -> tuple[int, int] | None:
    raise NotImplementedError("not attempted yet: your code replaces this line")
