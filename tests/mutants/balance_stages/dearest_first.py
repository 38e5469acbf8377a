"""Mutant: the dearest layer to the cheapest stage, again and again.

outcome: "wrong"
diagnosis: "gives a stage layers that are no neighbours"
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    stages = [[] for _ in range(num_stages)]
    for layer in sorted(range(len(costs)), key=lambda each: -costs[each]):
        cheapest = min(stages, key=lambda its: (sum(costs[each] for each in its), len(its)))
        cheapest.append(layer)
    return sorted(sorted(stage) for stage in stages)
