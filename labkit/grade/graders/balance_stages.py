"""Grade balance_stages: any cut of the layers whose slowest stage is as cheap as possible."""

from collections.abc import Callable, Sequence
from itertools import accumulate, product
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch, program
from labkit.grade.outcome import Finding

Formula = Callable[[Sequence[int], int], int]
NOT_USED = ("leaves a stage without layers", "returns too few stages")


def cases(draw: Draw) -> list[Case]:
    """A head, random costs, one expensive layer, edge cases, nearly equal and huge costs, many."""
    rng = draw.rng
    asked = [([1, 4, 4, 4, 4, 9], 3)]
    for num_stages in (3, 4, 5):
        block = rng.randrange(10, 40)
        asked.append(([2, *[block] * rng.randrange(9, 16), int(2.5 * block)], num_stages))
    for num_layers in range(8, 15):
        asked.append(([rng.randrange(1, 60) for _ in range(num_layers)], rng.randrange(3, 6)))
    asked += [(sorted(asked[-1][0]), 4), (sorted(asked[-2][0], reverse=True), 3)]
    for at in (0, 4, 8):
        asked.append(([200 if i == at else rng.randrange(1, 10) for i in range(9)], 5))
    asked += [([3, 1, 4], 1), ([3, 1, 4], 3), ([7], 1), ([0] * 5, 3), ([0, 0, 6, 0, 8, 0, 3], 4)]
    for size, spread in ((10**12, 10**9), (10**12, 10**5), (2**60, 100)):
        asked += [
            ([size + rng.randrange(spread) for _ in range(n)], 4) for n in range(10, 19) if n % 4
        ]
    asked += [([rng.randrange(100, 1000) for _ in range(n)], p) for n, p in ((60, 8), (200, 16))]
    return [
        Case(f"{' '.join(map(str, costs)):.60}, {len(costs)} layers, {p} stages", costs, p)
        for costs, p in asked
    ]


def right(costs: Sequence[int], num_stages: int) -> int:
    """The cost of the slowest stage at best, by dynamic programming."""
    upto = [0, *accumulate(costs)]
    best = upto  # of the first n layers in one stage, then in k
    for k in range(2, num_stages + 1):
        best = best[:k] + [
            min(max(best[i], upto[n] - upto[i]) for i in range(k - 1, n))
            for n in range(k, len(upto))
        ]
    return best[-1]


def slowest(costs: Sequence[int], stages: Sequence[Sequence[int]]) -> int:
    """What the most expensive stage costs."""
    return max(sum(costs[layer] for layer in stage) for stage in stages)


def problem(costs: Sequence[int], num_stages: int, stages: Any) -> str:
    """The name of what is wrong with stages that are no cut of these layers; empty for a cut."""
    try:
        layers = [layer for stage in stages for layer in stage]
    except TypeError:
        return "returns something else than lists of layers"
    if layers != [*range(len(costs))]:
        return "does not give each layer to one stage, in order"
    if not all(stages):
        return NOT_USED[0]
    return (
        "returns too many stages"
        if len(stages) > num_stages
        else (NOT_USED[1] if len(stages) < num_stages else "")
    )


def describe(s: Observed) -> str:
    """The stages that are no cut, or how slow the cut is."""
    if problem(*s.args, s.y):
        return f"got {s.y!r:.90}"
    return f"the slowest stage costs {slowest(s.xs, s.y):,}; {s.right[0]:,} is possible"


def fault(s: Observed) -> Finding | None:
    """A cut that is not one, or not the best one."""
    if not s.wrong_ranks or s.y is None:
        return None
    name = problem(*s.args, s.y) or "returns a cut that is not the best one"
    why = "Each layer is in one stage, in order, and no other cut has a cheaper slowest stage."
    return Finding(Outcome.WRONG, name, why, f"{s.label}: {describe(s)}", 2)


def leaves_out(s: Observed, *layers: int) -> bool:
    """Whether the cut would be best if these cost nothing, and the last stage is the slowest."""
    costs = [0 if i in layers else cost for i, cost in enumerate(s.xs)]
    return (
        not problem(*s.args, s.y)
        and slowest(costs, s.y) == right(costs, s.args[1])
        and slowest(s.xs, s.y[-1:]) == slowest(s.xs, s.y)
    )


def between(cuts: Sequence[int]) -> list[range]:
    """The stages between neighbouring cuts."""
    return [range(a, b) for a, b in zip(cuts, cuts[1:])]


def is_local_optimum(s: Observed) -> bool:
    """Whether no cut moved by one layer makes the slowest stage cheaper."""
    cuts = [0, *accumulate(map(len, s.y))]
    near = [[*cuts[:k], cuts[k] + d, *cuts[k + 1 :]] for k in range(1, s.args[1]) for d in (-1, 1)]
    return not problem(*s.args, s.y) and all(
        slowest(s.xs, between(moved)) >= slowest(s.xs, s.y)
        for moved in near
        if moved == sorted({*moved})
    )


def is_close(s: Observed) -> bool:
    """Whether the slowest stage is within 2% of the best."""
    return not problem(*s.args, s.y) and 50 * slowest(s.xs, s.y) <= 51 * s.right[0]


def is_huge(s: Observed) -> bool:
    """Whether floats round the costs."""
    return max(s.xs) > 2**53


def by_number(cut: Callable[[int, int, int], int]) -> Formula:
    """The slowest stage if layers are counted only; cut(n, p, k): the first layer of stage k."""
    return lambda costs, p: slowest(
        costs, between([*(cut(len(costs), p, k) for k in range(p)), len(costs)])
    )


def by_filling(is_full: Any, aim: Any, keeps: bool) -> Formula:
    """The slowest stage if stage after stage is filled. keeps: a layer for each later stage."""

    def formula(costs: Sequence[int], p: int) -> int:
        cuts = [0]
        for k in range(1, p):
            start, stop = cuts[-1], cuts[-1] + 1
            its = aim(sum(costs[:start]), sum(costs) / p, k, p)
            last = len(costs) - (p - k) * keeps
            while stop < last and not is_full(sum(costs[start:stop]), costs[stop], its):
                stop += 1
            cuts.append(stop)
        return slowest(costs, between([*cuts, len(costs)]))

    return formula


BY_NUMBER = [
    by_number(lambda n, p, k: n * k // p),
    by_number(lambda n, p, k: -(-n * k // p)),
    by_number(lambda n, p, k: n // p * k + min(k, n % p)),
    by_number(lambda n, p, k: n // p * k),
]
FULL = [
    lambda cost, following, aim: cost >= aim,
    lambda cost, following, aim: cost + following > aim,
    lambda cost, following, aim: abs(cost - aim) <= abs(cost + following - aim),
]
AIMS = [
    lambda before, average, k, p: average,
    lambda before, average, k, p: (average * p - before) / (p - k + 1),  # of what is left
    lambda before, average, k, p: average * k - before,  # cuts at k/p of the sum
]

FILLING = [by_filling(*each) for each in product(FULL, AIMS, (True, False))]

STAGES = "stages = cut(low)"
EQUAL = "[[i for i in range(n) if i * num_stages // n == k] for k in range(num_stages)]"

MISTAKES = [
    Mistake(
        "cuts by the number of layers",
        "Each stage has the same number of layers, but layers differ in cost. The head costs "
        "several blocks, so its stage needs fewer layers.",
        formula=BY_NUMBER,
        made_by=patch(STAGES, f"n = len(costs)\n    stages = {EQUAL}"),
    ),
    Mistake(
        "leaves out the embedding or the head",
        "The cut is the best one for the layers between. Embedding and head are layers like the "
        "others: their cost counts.",
        seen=lambda s: leaves_out(s, len(s.xs) - 1) or leaves_out(s, 0, len(s.xs) - 1),
        made_by=patch("def cut(limit", "costs = [*costs[:-1], 0]\n\n    def cut(limit"),
    ),
    Mistake(
        "fills each stage to the average",
        "Whether a stage is full depends on the layers that come later. With stages filled one by "
        "one, or cuts at equal parts of the sum, the excess adds up in one stage.",
        formula=FILLING,
        made_by=program(
            "def balance(costs, p):\n"
            "    stages = [[]]\n"
            "    for i in range(len(costs)):\n"
            "        is_full = sum(costs[j] for j in stages[-1]) >= sum(costs) / p\n"
            "        is_full = is_full or len(costs) - i == p - len(stages)\n"
            "        if stages[-1] and len(stages) < p and is_full:\n"
            "            stages.append([])\n"
            "        stages[-1].append(i)\n"
            "    return stages\n"
        ),
    ),
    Mistake(
        "stops the search before the best limit",
        "Each cut is within 2% of the best one. The search must end at the exact limit: search in "
        "whole numbers, until low == high.",
        hint=3,
        seen=lambda s: is_close(s) and not is_huge(s),
        made_by=patch("low < high:", "high - low > high // 1000:", STAGES, "stages = cut(high)"),
    ),
    Mistake(
        "adds costs in floats",
        "Above 2**53 floats cannot represent every whole number, so sums are rounded. Keep costs "
        "and limits whole: // instead of /, no float() and no numpy floats.",
        hint=3,
        seen=lambda s: is_close(s) and is_huge(s),
        made_by=patch("room = limit", "room = float(limit)"),
    ),
    Mistake(
        "ends at a local optimum",
        "No move of one layer to the next stage improves this cut, and yet a better one exists: "
        "sometimes two borders must move together. Search for the limit of a stage instead, or use "
        "dynamic programming.",
        seen=lambda s: is_local_optimum(s) and not is_huge(s),
        made_by=program(
            "def balance(costs, p):\n"
            "    parts = lambda c: [[*range(a, b)] for a, b in zip(c, c[1:])]\n"
            "    cost = lambda c: max(sum(costs[i] for i in part) for part in parts(c))\n"
            "    cuts, best = [len(costs) * k // p for k in range(p + 1)], None\n"
            "    while best != cuts:\n"
            "        best, moves = cuts, [(k, d) for k in range(1, p) for d in (-1, 1)]\n"
            "        near = [[*best[:k], best[k] + d, *best[k + 1 :]] for k, d in moves]\n"
            "        cuts = min([best, *(c for c in near if c == sorted({*c}))], key=cost)\n"
            "    return parts(cuts)\n"
        ),
    ),
    Mistake(
        "does not use all stages where fewer are enough",
        "Every rank needs a stage with at least one layer. Cut a stage in two: no stage becomes "
        "slower.",
        hint=3,
        seen=lambda s: problem(*s.args, s.y) in NOT_USED,
        made_by=patch("while len(stages) < num_stages:", "while False:"),
    ),
    Mistake(
        "tries every cut",
        "60 layers on 8 stages have 3 * 10**8 cuts, 200 layers on 16 stages 10**22. Compute the "
        "best cut of the first n layers into k stages once, and keep it; or search for the limit.",
        hint=2,
        outcome=Outcome.HUNG,
        seen=lambda s: len(s.xs) == 60,
        made_by=program(
            "from itertools import combinations\n"
            "def balance(costs, p):\n"
            "    every = ((0, *c, len(costs)) for c in combinations(range(1, len(costs)), p - 1))\n"
            "    cuts = min(every, key=lambda c: max(sum(costs[a:b]) for a, b in zip(c, c[1:])))\n"
            "    return [[*range(a, b)] for a, b in zip(cuts, cuts[1:])]\n"
        ),
    ),
]

GRADER = Questions(
    name="balance_stages",
    functions=("balance",),
    cases=cases,
    right=right,
    same=lambda got, right, case: (
        not problem(*case.args, got) and slowest(case.args[0], got) == right
    ),
    mistakes=MISTAKES,
    closed=("labkit.pipeline",),
    describe=describe,
    fault=fault,
    shown="no cut is better than yours: not with a head that costs several blocks, not with huge "
    "costs that differ by 1, and not for 200 layers on 16 stages",
)
