"""Mutant: cuts where the running total passes k parts of p.

outcome: "wrong"
diagnosis: "cuts the sum into equal parts"
"""

from bisect import bisect_left
from itertools import accumulate


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    upto = [0, *accumulate(costs)]
    cuts = [0]
    for k in range(1, num_stages):
        at = bisect_left(upto, upto[-1] * k / num_stages)
        cuts.append(min(max(at, cuts[-1] + 1), len(costs) - (num_stages - k)))
    cuts.append(len(costs))
    return [list(range(a, b)) for a, b in zip(cuts, cuts[1:])]
