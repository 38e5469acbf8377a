"""Mutant: F, I and W of one microbatch.

outcome: "over budget"
diagnosis: "one microbatch at a time"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for i in range(num_microbatches) for kind in "FIW"]
