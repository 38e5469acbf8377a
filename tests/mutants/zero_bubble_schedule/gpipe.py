"""Mutant: F, then I, then W.

outcome: "over budget"
diagnosis: "is GPipe"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for kind in "FIW" for i in range(num_microbatches)]
