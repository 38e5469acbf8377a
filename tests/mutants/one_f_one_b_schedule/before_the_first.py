"""Mutant: as if m were p or more; counts back from m, and further.

outcome: "wrong"
diagnosis: "a microbatch before the first"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = num_ranks - rank - 1
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
