"""Mutant: two forwards for each rank behind.

outcome: "over budget"
diagnosis: "twice the warmup"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(2 * (num_ranks - rank - 1), num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
