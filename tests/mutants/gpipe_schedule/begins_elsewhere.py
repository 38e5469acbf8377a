"""Mutant: so that ranks do not wait for the first microbatch.

outcome: "over budget"
diagnosis: "puts microbatches in another order on each rank"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    order = [(rank + i) % num_microbatches for i in range(num_microbatches)]
    return [f"{kind}{i}" for kind in "FB" for i in order]
