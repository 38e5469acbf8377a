"""Mutant: the last microbatch is not there.

outcome: "wrong"
diagnosis: "forgets the last microbatch"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    every = range(num_microbatches - 1)
    return [f"F{i}" for i in every] + [f"B{i}" for i in every]
