"""Mutant: counts from 1.

outcome: "wrong"
diagnosis: "counts microbatches from 1"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    every = range(1, num_microbatches + 1)
    return [f"{kind}{i}" for kind in "FB" for i in every]
