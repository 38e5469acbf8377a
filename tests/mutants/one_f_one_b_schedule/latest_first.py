"""Mutant: B of the microbatch whose F has just been done.

outcome: "over budget"
diagnosis: "takes the latest microbatch back first"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i}"
    for i in range(warmup):
        yield f"B{i}"
