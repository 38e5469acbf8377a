"""The bubble of a pipeline, relative to total and to ideal time, and the microbatches for a limit.

An interviewer asks: "Eight stages, 16 microbatches, 1F1B. How large is the bubble? A colleague says
44%, you say 30%: who is right? What do two virtual stages per rank change, and what does zero
bubble change? How many microbatches do you need for a bubble of at most 5%?"

Write two functions.

    bubble(p, m, schedule, virtual, relative_to)
        p            ranks of the pipeline, 1 or more
        m            microbatches of a step, 1 or more; may be smaller than p, except as said below
        schedule     "naive"        one microbatch after another: one of p ranks works at a time
                     "gpipe"        all forwards, then all backwards
                     "1f1b"         one forward, one backward, after a warmup
                     "interleaved"  1F1B with `virtual` stages per rank. Each has a `virtual`-th of
                                    the layers that the rank holds. m is a multiple of p
                     "zb_h1"        1F1B with each backward split into I, the gradient of the input,
                                    and W, the gradients of the weights. W fills part of the bubble.
                                    m is p or more
        virtual      stages per rank; 1 for all schedules but "interleaved", where it is 1 or more
        relative_to  "total": idle time of all ranks / total time of all ranks
                     "ideal": idle time of all ranks / the time in which they work
        returns      the fraction, a number: 0.25, not 25

    microbatches_for(p, percent, schedule, virtual, relative_to)
        percent      the largest bubble allowed, a whole number of 1 or more: 5 for 5%
        returns      the smallest number of microbatches, 1 or more, that the schedule can have and
                     with which the bubble is at most `percent`; None if no number is enough

All ranks have the same work. F, I and W take equally long, so a whole backward takes twice as long
as a forward. Messages take no time.

Contract
    returns  int, float or None, within 1e-9 of the exact value. A Fraction is refused: return
             float(x)
    exact    microbatches_for is exact, also where the bubble equals the limit: 0.07 * 100 is not 7
             in floating point
    never    labkit.calc, labkit.pipeline

Papers: Huang et al., GPipe, arXiv:1811.06965; Narayanan et al., arXiv:2104.04473, section 2.2; Qi
et al., "Zero bubble pipeline parallelism", arXiv:2401.10241.
"""


def bubble(p: int, m: int, schedule: str, virtual: int, relative_to: str) -> float:
    """Return the idle time of a step as a fraction of the total or of the ideal time."""
    ### BEGIN SOLUTION
    # The unit of time is the F, I and W of one microbatch on a rank, so a rank works for m units.
    # Fill and drain take p - 1 units. With v stages per rank they take a v-th of that. In ZB-H1
    # only the I of p - 1 ranks remain, a third: W fills the rest.
    idle = (p - 1) / {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)
    if schedule == "naive":
        idle = (p - 1) * m  # a rank is idle while each microbatch is on the p - 1 others
    return idle / (m if relative_to == "ideal" else m + idle)
    ### END SOLUTION


def microbatches_for(
    p: int, percent: int, schedule: str, virtual: int, relative_to: str
) -> int | None:
    """Return the fewest microbatches with a bubble of at most `percent`, or None."""
    ### BEGIN SOLUTION
    # The limit is idle / m <= percent / busy. Relative to ideal, 100 units of work may come with
    # `percent` idle ones. Relative to total, `percent` of 100 units are idle and the rest is work.
    # In whole numbers nothing is rounded.
    busy = 100 if relative_to == "ideal" else 100 - percent
    if schedule == "naive":
        return 1 if (p - 1) * busy <= percent else None
    divisor = percent * {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)
    fewest = max(-(-(p - 1) * busy // divisor), 1)  # rounded up
    if schedule == "interleaved":
        return -(-fewest // p) * p
    return max(fewest, p) if schedule == "zb_h1" else fewest
    ### END SOLUTION
