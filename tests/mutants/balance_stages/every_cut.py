"""Mutant: tries all of them.

outcome: "hung"
diagnosis: "tries every cut"
"""

from itertools import combinations


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    every = (
        (0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), num_stages - 1)
    )
    cuts = min(every, key=lambda its: max(sum(costs[a:b]) for a, b in zip(its, its[1:])))
    return [list(range(a, b)) for a, b in zip(cuts, cuts[1:])]
