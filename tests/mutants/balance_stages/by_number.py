"""Mutant: as many layers for each stage.

outcome: "wrong"
diagnosis: "cuts by the number of layers"
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    share, rest = divmod(len(costs), num_stages)
    stages, start = [], 0
    for stage in range(num_stages):
        stop = start + share + (stage < rest)
        stages.append(list(range(start, stop)))
        start = stop
    return stages
