"""Mutant: every W is put off.

outcome: "over budget"
diagnosis: "puts every W at the end"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    behind = num_microbatches
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
