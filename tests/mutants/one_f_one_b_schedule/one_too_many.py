"""Mutant: a warmup of p - rank, then the steady phase.

outcome: "over budget"
diagnosis: "one forward too many before the first backward"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
