"""Mutant: GPipe handed in.

outcome: "over budget"
diagnosis: "is GPipe"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for kind in "FB" for i in range(num_microbatches)]
