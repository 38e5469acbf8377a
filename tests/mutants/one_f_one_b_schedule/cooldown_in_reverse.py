"""Mutant: the last in are the first out, at the end.

outcome: "over budget"
diagnosis: "takes the last ones back in reverse"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(warmup, num_microbatches):
        yield f"F{i}"
        yield f"B{i - warmup}"
    for i in reversed(range(num_microbatches - warmup, num_microbatches)):
        yield f"B{i}"
