"""Mutant: the first rank takes in all it can get.

outcome: "over budget"
diagnosis: "holds more than it must"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = num_microbatches if rank == 0 else min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
