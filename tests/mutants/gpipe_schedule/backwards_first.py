"""Mutant: the halves are swapped.

outcome: "wrong"
diagnosis: "goes back before it has gone forward"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    row = [f"{kind}{i}" for kind in "BF" for i in range(num_microbatches)]
    return row
