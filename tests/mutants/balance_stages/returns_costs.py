"""Mutant: the costs by stage in the place of layers.

outcome: "wrong"
diagnosis: "names a layer that there is not"
"""

from functools import cache
from itertools import accumulate


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    upto = [0, *accumulate(costs)]

    @cache
    def best(n: int, k: int) -> tuple[int, tuple[int, ...]]:
        if k == 1:
            return upto[n], (0, n)
        choices = []
        for i in range(k - 1, n):
            before, cuts = best(i, k - 1)
            choices.append((max(before, upto[n] - upto[i]), (*cuts, n)))
        return min(choices)

    cuts = best(len(costs), num_stages)[1]
    return [costs[a:b] for a, b in zip(cuts, cuts[1:])]
