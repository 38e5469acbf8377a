"""Mutant: the rows of all ranks, whichever is asked for.

outcome: "wrong"
diagnosis: "returns the rows of all ranks"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    row = [f"{kind}{i}" for kind in "FB" for i in range(num_microbatches)]
    return [row] * num_ranks
