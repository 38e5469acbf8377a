"""Mutant: a stage is full when it has the average.

outcome: "wrong"
diagnosis: "fills stages up to the average"
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    average = sum(costs) / num_stages
    stages = [[]]
    for layer, cost in enumerate(costs):
        left = len(costs) - layer
        missing = num_stages - len(stages)
        is_full = sum(costs[each] for each in stages[-1]) >= average
        if stages[-1] and missing and (is_full or left == missing):
            stages.append([])
        stages[-1].append(layer)
    return stages
