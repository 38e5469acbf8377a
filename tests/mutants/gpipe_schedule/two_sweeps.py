"""Mutant: backward meets on the way: the first rank goes back in reverse.

outcome: "over budget"
diagnosis: "a larger bubble than it must have"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    every = range(num_microbatches)
    back = every[::-1] if rank == 0 else every
    return [f"F{i}" for i in every] + [f"B{i}" for i in back]
