"""Mutant: the first cell of the cooldown has been done.

outcome: "wrong"
diagnosis: "an operation twice"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(max(0, num_microbatches - warmup - 1), num_microbatches):
        yield f"B{i}"
