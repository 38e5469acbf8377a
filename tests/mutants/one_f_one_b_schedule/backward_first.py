"""Mutant: B, then F, in the steady phase.

outcome: "wrong"
diagnosis: "a backward before the forward in the steady phase"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"B{i - warmup}"
        yield f"F{i}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
