"""Mutant: the halves in the other order.

outcome: "wrong"
diagnosis: "W before I"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    behind = rank
    warmup = min(num_ranks - rank - 1, num_microbatches)
    for i in range(warmup):
        yield f"F{i}"
    for i in range(num_microbatches):
        if i + warmup < num_microbatches:
            yield f"F{i + warmup}"
        yield f"W{i}"
        yield f"I{i}"
