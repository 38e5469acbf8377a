"""Mutant: I as if nobody had to send a gradient: before the forward.

outcome: "wrong"
diagnosis: "a backward before its forward"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    for i in range(num_microbatches):
        yield f"I{i}"
        yield f"F{i}"
        yield f"W{i}"
