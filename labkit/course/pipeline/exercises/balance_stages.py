"""Grade balance_stages: any cut of the layers whose slowest stage is as cheap as possible."""

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import Any

from labkit.grade import grader as g
from labkit.grade.differences import cut, shown


def cases(draw: g.Draw) -> list[g.Case]:
    """Return a head, random costs, one expensive layer, edge cases, nearly equal and huge costs,
    many."""
    rng = draw.rng
    asked = [([1, 4, 4, 4, 4, 9], 3), ([2, 9, 4, 3, 2], 3), ([2, 9, 5, 4, 7], 4)]
    for p in (3, 4, 5):
        block = rng.randrange(10, 40)
        asked.append(([2, *[block] * rng.randrange(9, 16), int(2.5 * block)], p))
    asked += [([rng.randrange(1, 60) for _ in range(n)], rng.randrange(3, 6)) for n in range(8, 15)]
    asked += [([*range(1, at), 200, *range(at, 9)], 5) for at in (1, 5, 9)]
    asked += [([3, 1, 4], 1), ([3, 1, 4], 3), ([7], 1), ([0] * 5, 3), ([0, 0, 6, 0, 8, 0, 3], 4)]
    for size, spread in ((10**12, 10**9), (10**12, 10**5), (2**60, 100)):
        for n in (11, 13, 14, 18):
            asked.append(([size + rng.randrange(spread) for _ in range(n)], 4))
    asked += [([rng.randrange(100, 1000) for _ in range(n)], p) for n, p in ((60, 8), (200, 16))]
    return [
        g.Case(f"{cut(' '.join(map(str, costs)))}, {len(costs)} layers, {p} stages", costs, p)
        for costs, p in asked
    ]


def right(costs: Sequence[int], num_stages: int) -> int:
    """Return the cost of the slowest stage at best, by dynamic programming."""
    upto = [0, *accumulate(costs)]
    best = upto  # the cost of the first n layers in one stage, then in k
    for k in range(2, num_stages + 1):
        best = best[:k] + [
            min(max(best[i], upto[n] - upto[i]) for i in range(k - 1, n))
            for n in range(k, len(upto))
        ]
    return best[-1]


def slowest(costs: Sequence[int], num_stages: int, stages: Any) -> float:
    """Return the cost of the most expensive stage; infinity if the stages are not a valid split."""
    try:
        layers = [layer for stage in stages for layer in stage]
    except TypeError:
        return inf
    if len(stages) != num_stages or not all(stages) or layers != [*range(len(costs))]:
        return inf
    return max(sum(costs[layer] for layer in stage) for stage in stages)


def describe(s: g.Observed) -> str:
    """Return the stages that are no cut, or how slow the cut is."""
    if (cost := slowest(*s.args, s.y)) == inf:
        return f"got {shown(s.y)}, which is no cut"
    return f"the slowest stage costs {cost:,}; {s.right[0]:,} is possible"


def is_local_optimum(s: g.Observed) -> bool:
    """Return whether no border moved by one layer makes the slowest stage cheaper."""
    cuts = [0, *accumulate(map(len, s.y))]
    near = ([*cuts[:k], cuts[k] + d, *cuts[k + 1 :]] for k in range(1, s.args[1]) for d in (-1, 1))
    moved = ([range(a, b) for a, b in zip(each, each[1:])] for each in near)
    return all(slowest(*s.args, each) >= slowest(*s.args, s.y) < inf for each in moved)


BY_NUMBER = """
def balance(costs, p):
    n = len(costs)
    cuts = [FIRST for k in range(p + 1)]
    return [[*range(a, b)] for a, b in zip(cuts, cuts[1:])]
"""
FIRST = ("n * k // p", "n // p * k + min(k, n % p)", "n * (k == p) or n // p * k")

FILLING = """
def balance(costs, p):
    stages = [[]]
    for i, cost in enumerate(costs):
        k, mine, aim = len(stages), sum(costs[j] for j in stages[-1]), sum(costs) / p
        if stages[-1] and k < p and (FULL or len(costs) - i == p - k):
            stages.append([])
        stages[-1].append(i)
    return stages
"""

LOCAL_SEARCH = """
def balance(costs, p):
    n = len(costs)
    cuts = [n * k // p for k in range(p + 1)]
    slowest = lambda cuts: max(sum(costs[a:b]) for a, b in zip(cuts, cuts[1:]))
    for k, step in n * [(k, step) for k in range(1, p) for step in (-1, 1)]:
        near = [*cuts[:k], cuts[k] + step, *cuts[k + 1 :]]
        if cuts[k - 1] < near[k] < cuts[k + 1] and slowest(near) < slowest(cuts):
            cuts = near
    return [[*range(a, b)] for a, b in zip(cuts, cuts[1:])]
"""

MISTAKES = [
    g.Mistake(
        "cuts by the number of layers",
        "Each stage has the same number of layers, but layers differ in cost. The head costs "
        "several blocks, so its stage needs fewer layers.",
        [g.program(BY_NUMBER.replace("FIRST", first)) for first in FIRST],
    ),
    g.Mistake(
        "fills each stage to the average",
        "The best size of a stage depends on the layers that come later. With stages filled one by "
        "one, the excess adds up in one stage.",
        [g.program(FILLING.replace("FULL", full)) for full in ("mine >= aim", "mine + cost > aim")],
    ),
    g.Mistake(
        "ends the search near the best limit, or rounds in floats",
        "Each cut is nearly the best one. Search until low == high, in whole numbers: above "
        "2**53 floats cannot represent each of them. // instead of /, no float(), no numpy floats.",
        [
            g.patch("low < high:", "high - low > high // 1000:", "= cut(low)", "= cut(high)"),
            g.patch("room = limit", "room = float(limit)"),
        ],
        wrong=lambda s: slowest(*s.args, s.y) <= s.right[0] + s.right[0] // 1000 + 1,
        hint=3,
    ),
    g.Mistake(
        "leaves out the head",
        "The cut is the best one for the layers before. Embedding and head are layers like the "
        "others: their cost counts.",
        g.patch("def cut(limit", "costs = [*costs[:-1], 0]\n\n    def cut(limit"),
        wrong=lambda s: slowest((costs := [*s.xs[:-1], 0]), p := s.args[1], s.y) == right(costs, p),
    ),
    g.Mistake(
        "ends at a local optimum",
        "No move of one layer to the next stage improves this cut, and yet a better one exists: "
        "sometimes two borders must move together, and the least sum of squares is not the least "
        "maximum. Search for the limit of a stage, or use dynamic programming for the maximum.",
        g.program(LOCAL_SEARCH),
        wrong=lambda s: is_local_optimum(s) and max(s.xs) < 2**53,
    ),
    g.Mistake(
        "does not use all stages where fewer are enough",
        "Every rank needs a stage with at least one layer. Cut a stage in two: no stage becomes "
        "slower.",
        g.patch("while len(stages) < num_stages:", "while False:"),
        wrong=lambda s: slowest(s.xs, len(used := [*filter(None, s.y)]), used) == s.right[0],
        hint=3,
    ),
    g.Mistake(
        "tries every cut",
        "60 layers on 8 stages have 3 * 10**8 cuts, 200 layers on 16 stages 10**22. Compute the "
        "best cut of the first n layers into k stages once, and keep it; or search for the limit.",
        g.patch(
            "max(costs)", "max(map(max, __import__('itertools').combinations(costs, num_stages)))"
        ),
        hung=lambda s: len(s.xs) == 60,
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=("balance",),
    cases=cases,
    right=right,
    same=lambda got, right, case: slowest(*case.args, got) == right,
    mistakes=MISTAKES,
    closed=("labkit.pipeline",),
    describe=describe,
    unexplained=(
        "returns no cut, or none of the best",
        "Each layer is in one stage, in order, and no other cut has a cheaper slowest stage.",
    ),
    shown="no cut is better than yours: not with a head that costs several blocks, not with huge "
    "costs that differ by 1, and not for 200 layers on 16 stages",
)
