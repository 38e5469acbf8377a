"""Mutant: the last microbatch is not there.

outcome: "wrong"
diagnosis: "forgets the last microbatch"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    num_microbatches = num_microbatches - 1
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in range(num_microbatches - warmup, num_microbatches):
        yield f"B{i}"
