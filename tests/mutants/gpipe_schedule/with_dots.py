"""Mutant: waiting has cells of its own.

outcome: "wrong"
diagnosis: "writes down when it waits"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    every = range(num_microbatches)
    late = num_ranks - 1 - rank
    row = ["."] * rank + [f"F{i}" for i in every] + ["."] * (2 * late)
    return row + [f"B{i}" for i in every] + ["."] * rank
