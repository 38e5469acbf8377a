"""Mutant: a warmup without the factor of 2.

outcome: "over budget"
diagnosis: "one forward for each rank behind, where it takes two"
"""


def interleaved_schedule(rank, num_ranks, num_microbatches, virtual):
    size = num_ranks

    def stage(turn):
        return turn * num_ranks + rank

    forwards, backwards = [], []
    for first in range(0, num_microbatches, size):
        for turn in range(virtual):
            for microbatch in range(first, first + size):
                forwards.append(f"F{microbatch}@{stage(turn)}")
                backwards.append(f"B{microbatch}@{stage(virtual - 1 - turn)}")
    warmup = min((virtual - 1) * num_ranks + num_ranks - rank - 1, len(forwards))
    yield from forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards):
        yield forward
        yield backward
    yield from backwards[len(forwards) - warmup :]
