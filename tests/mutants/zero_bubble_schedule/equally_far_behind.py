"""Mutant: p - 1 on every rank.

outcome: "over budget"
diagnosis: "as many W put off on every rank"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    behind = num_ranks - 1
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(num_microbatches):
        if i + warmup < num_microbatches:
            yield f"F{i + warmup}"
        yield f"I{i}"
        if i >= behind:
            yield f"W{i - behind}"
    for i in range(max(0, num_microbatches - behind), num_microbatches):
        yield f"W{i}"
