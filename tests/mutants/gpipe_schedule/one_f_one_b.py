"""Mutant: the other schedule that everybody knows.

outcome: "wrong"
diagnosis: "is 1F1B"
"""


def gpipe_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    row = [f"F{i}" for i in range(warmup)]
    for i in range(warmup, num_microbatches):
        row += [f"F{i}", f"B{i - warmup}"]
    return row + [f"B{i}" for i in range(num_microbatches - warmup, num_microbatches)]
