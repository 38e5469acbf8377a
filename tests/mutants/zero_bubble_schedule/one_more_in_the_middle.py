"""Mutant: ranks in the middle take in one forward more before their first I.

outcome: "over budget"
diagnosis: "one forward too early on the ranks in the middle"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    num_first = warmup + 1 + (0 < rank < num_ranks - 1)
    row = [f"F{i}" for i in range(min(num_first, num_microbatches))]
    for i in range(num_microbatches):
        if num_first <= i + warmup < num_microbatches:
            row.append(f"F{i + warmup}")
        row.append(f"I{i}")
        if i >= rank:
            row.append(f"W{i - rank}")
    return row + [f"W{i}" for i in range(max(0, num_microbatches - rank), num_microbatches)]
