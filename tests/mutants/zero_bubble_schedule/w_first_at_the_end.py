"""Mutant: the W that are left come before the last I.

outcome: "over budget"
diagnosis: "a larger bubble than it must have"
"""


def zero_bubble_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    row = [f"F{i}" for i in range(warmup)]
    done = 0
    for i in range(num_microbatches):
        if i + warmup < num_microbatches:
            row.append(f"F{i + warmup}")
        if i == num_microbatches - 1:
            row += [f"W{w}" for w in range(done, i)]
            done = i
        row.append(f"I{i}")
        if i >= rank:
            row.append(f"W{done}")
            done += 1
    return row + [f"W{w}" for w in range(done, num_microbatches)]
