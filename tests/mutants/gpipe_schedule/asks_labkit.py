"""Mutant: labkit has one.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

from labkit.pipeline import gpipe


def gpipe_schedule(rank, num_ranks, num_microbatches):
    return map(str, gpipe(rank, num_ranks, num_microbatches))
