"""Mutant: None while it waits for the first gradient.

outcome: "wrong"
diagnosis: "writes down when it waits"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    yield from [None] * (num_ranks - rank - 1)
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
