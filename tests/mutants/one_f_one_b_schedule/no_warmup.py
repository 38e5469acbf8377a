"""Mutant: F and B of one microbatch.

outcome: "over budget"
diagnosis: "one microbatch at a time"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for i in range(num_microbatches) for kind in "FB"]
