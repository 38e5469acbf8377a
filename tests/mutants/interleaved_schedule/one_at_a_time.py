"""Mutant: a microbatch there and back, then the next.

outcome: "over budget"
diagnosis: "one microbatch at a time"
"""


def interleaved_schedule(rank, num_ranks, num_microbatches, virtual):
    stages = range(rank, num_ranks * virtual, num_ranks)
    for i in range(num_microbatches):
        for kind, order in (("F", stages), ("B", reversed(stages))):
            yield from (f"{kind}{i}@{s}" for s in order)
