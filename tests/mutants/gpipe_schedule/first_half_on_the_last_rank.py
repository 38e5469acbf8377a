"""Mutant: the last rank forgets a backward.

outcome: "wrong"
diagnosis: "leaves an operation out"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    every = range(num_microbatches)
    back = every[1:] if rank == num_ranks - 1 else every
    return [f"F{i}" for i in every] + [f"B{i}" for i in back]
