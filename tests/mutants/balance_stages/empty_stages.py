"""Mutant: ranks that are not needed get nothing.

outcome: "wrong"
diagnosis: "leaves a stage without layers"
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    def cut(limit: float) -> list[list[int]]:
        stages, room = [], -1.0
        for layer, cost in enumerate(costs):
            if cost > room:
                stages.append([])
                room = limit
            stages[-1].append(layer)
            room -= cost
        return stages

    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if len(cut(middle)) <= num_stages:
            high = middle
        else:
            low = middle + 1
    stages = cut(low)
    return stages + [[]] * (num_stages - len(stages))
