"""Mutant: 1F1B with a B.

outcome: "over budget"
diagnosis: "keeps the backward whole"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    behind = rank
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(num_microbatches):
        if i + warmup < num_microbatches:
            yield f"F{i + warmup}"
        yield f"B{i}"
