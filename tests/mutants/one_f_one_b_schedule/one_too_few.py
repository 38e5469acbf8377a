"""Mutant: a warmup of p - rank - 2.

outcome: "over budget"
diagnosis: "one forward too few before the first backward"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = max(0, min(num_ranks - rank - 2, num_microbatches))
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
