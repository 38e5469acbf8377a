"""Mutant: F and B in one loop.

outcome: "wrong"
diagnosis: "one microbatch at a time"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    row = []
    for microbatch in range(num_microbatches):
        row += [f"F{microbatch}", f"B{microbatch}"]
    return row
