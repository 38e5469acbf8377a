"""Mutant: plain 1F1B, with a stage's number.

outcome: "wrong"
diagnosis: "leaves out all stages but the first"
"""


def interleaved_schedule(rank, num_ranks, num_microbatches, virtual):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    row = [f"F{i}@{rank}" for i in range(warmup)]
    for i in range(warmup, num_microbatches):
        row += [f"F{i}@{rank}", f"B{i - warmup}@{rank}"]
    return row + [f"B{i}@{rank}" for i in range(num_microbatches - warmup, num_microbatches)]
