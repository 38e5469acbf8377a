"""Mutant: a row in one piece of text.

outcome: "wrong"
diagnosis: "returns something else"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    return " ".join(f"{kind}{i}" for kind in "FB" for i in range(num_microbatches))
