"""Mutant: backward is left to autograd.

outcome: "wrong"
diagnosis: "never goes back"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    for i in range(num_microbatches):
        yield f"F{i}"
