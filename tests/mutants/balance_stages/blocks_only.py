"""Mutant: embedding and head come on top.

outcome: "wrong"
diagnosis: "leaves out embedding and head"
"""

from functools import cache
from itertools import accumulate


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    upto = [0, *accumulate([0, *costs[1:-1], 0][: len(costs)])]

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
    return [list(range(a, b)) for a, b in zip(cuts, cuts[1:])]
