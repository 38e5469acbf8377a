"""Mutant: all forwards first, stage by stage.

outcome: "over budget"
diagnosis: "all forwards, then all backwards"
"""


def interleaved_schedule(rank, num_ranks, num_microbatches, virtual):
    stages = range(rank, num_ranks * virtual, num_ranks)
    row = [f"F{i}@{s}" for s in stages for i in range(num_microbatches)]
    return row + [f"B{i}@{s}" for s in reversed(stages) for i in range(num_microbatches)]
