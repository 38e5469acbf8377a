"""Mutant: a warmup of p - 1.

outcome: "over budget"
diagnosis: "the same warmup on every rank"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
