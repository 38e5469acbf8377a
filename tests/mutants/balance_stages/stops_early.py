"""Mutant: halves the interval until it is short, and takes the limit that is enough.

outcome: "wrong"
diagnosis: "stops before the best"
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

    low, high = float(max(costs)), float(sum(costs))
    while high - low > high / 1000:
        middle = (low + high) / 2
        if len(cut(middle)) <= num_stages:
            high = middle
        else:
            low = middle
    stages = cut(high)
    while len(stages) < num_stages:
        longest = max(stages, key=len)
        stages.insert(stages.index(longest) + 1, [longest.pop()])
    return stages
