"""The bubble of a pipeline, by both conventions, and the microbatches that keep it small.

An interviewer asks: "Eight stages, 16 microbatches, 1F1B. How large is the bubble? Somebody else
says 44%, and you say 30%: who is right? What do two virtual stages per rank change, and what does
zero bubble? And how many microbatches do you need if the bubble may be 5%?"

Write two functions.

    bubble(p, m, schedule, virtual, relative_to)
        p            ranks of the pipeline, 1 or more
        m            microbatches of a step, 1 or more; may be fewer than p
        schedule     "naive"        one microbatch after another: of p ranks one works
                     "gpipe"        all forwards, then all backwards
                     "1f1b"         one forward, one backward, after a warmup
                     "interleaved"  1F1B, where each rank holds `virtual` stages, each of them a
                                    `virtual`-th of the layers that it would hold with one; m is a
                                    multiple of p
                     "zb_h1"        1F1B, each backward split into I, the gradient of the input,
                                    and W, those of the weights; W fills what would be bubble. m is
                                    p or more
        virtual      stages per rank; 1 for all schedules but "interleaved"
        relative_to  "total": idle time of the ranks, as a share of all their time
                     "ideal": idle time, as a share of the time in which they work
        returns      the share, a number: 0.25, not 25

    microbatches_for(p, percent, schedule, virtual, relative_to)
        percent      what the bubble may be at most, a whole number of 1 or more: 5 for 5%
        returns      the fewest microbatches with which the bubble is at most that, a whole number
                     of 1 or more; None where no number of them is enough

All ranks have the same work. F, I and W take equally long: a whole backward takes twice as long as
a forward. Messages take no time.

Contract
    returns  plain numbers, or None; float(x) makes one of a Fraction. Within 1e-9 of the truth
    exact    at the edge, too: 10% of 10 parts is 1 part. 0.07 * 100 is not 7 in floating point
    never    labkit.calc, labkit.pipeline. Each check performs the schedules in an event simulation,
             operation by operation, and compares

Papers: Huang et al., GPipe, arXiv:1811.06965; Narayanan et al., arXiv:2104.04473, section 2.2; Qi
et al., "Zero bubble pipeline parallelism", arXiv:2401.10241.
"""


def bubble(p: int, m: int, schedule: str, virtual: int, relative_to: str) -> float:
    """The bubble of a step, as a share of the total or of the ideal time."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def microbatches_for(
    p: int, percent: int, schedule: str, virtual: int, relative_to: str
) -> int | None:
    """The fewest microbatches with which the bubble is at most `percent`; None: no number is."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
