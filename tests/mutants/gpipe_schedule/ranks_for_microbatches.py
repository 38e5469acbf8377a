"""Mutant: as many microbatches as ranks.

outcome: "wrong"
diagnosis: "takes ranks for microbatches"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for kind in "FB" for i in range(num_ranks)]
