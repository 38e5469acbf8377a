"""Mutant: does not notice that fewer stages were enough.

outcome: "wrong"
diagnosis: "another number of stages"
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
    return cut(low)
