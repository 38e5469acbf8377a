"""Mutant: the last microbatch goes through twice.

outcome: "wrong"
diagnosis: "an operation twice"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    every = list(range(num_microbatches))
    every += every[-1:]
    return [f"{kind}{i}" for kind in "FB" for i in every]
