"""Mutant: a stage gets its share of what is left, and not more.

outcome: "wrong"
diagnosis: "fills stages up to the average"
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    stages, start = [], 0
    for stage in range(num_stages):
        left = num_stages - stage
        aim = sum(costs[start:]) / left
        stop = start + 1
        while stop < len(costs) - (left - 1) and sum(costs[start : stop + 1]) <= aim:
            stop += 1
        stages.append(list(range(start, stop if left > 1 else len(costs))))
        start = stop
    return stages
