"""Mutant: as if m were p or more.

outcome: "wrong"
diagnosis: "forgets that there may be fewer microbatches than ranks"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = num_ranks - rank - 1
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(max(0, num_microbatches - warmup), num_microbatches):
        yield f"B{i}"
