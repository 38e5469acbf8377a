"""Mutant: the last rank goes back as soon as it can.

outcome: "wrong"
diagnosis: "begins backwards before the last forward"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    every = range(num_microbatches)
    if rank == num_ranks - 1:
        return [f"{kind}{i}" for i in every for kind in "FB"]
    return [f"{kind}{i}" for kind in "FB" for i in every]
