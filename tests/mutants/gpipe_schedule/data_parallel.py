"""Mutant: each rank has microbatches of its own.

outcome: "wrong"
diagnosis: "divides the microbatches among the ranks"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    mine = range(rank, num_microbatches, num_ranks)
    return [f"F{i}" for i in mine] + [f"B{i}" for i in mine]
