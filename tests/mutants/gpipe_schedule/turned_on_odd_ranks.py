"""Mutant: last in, first out, on every second rank.

outcome: "over budget"
diagnosis: "puts microbatches in another order on each rank"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    every = range(num_microbatches)
    back = reversed(every) if rank % 2 else every
    return [f"F{i}" for i in every] + [f"B{i}" for i in back]
