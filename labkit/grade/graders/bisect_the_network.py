"""Grade bisect_the_network: networks of 3 to 100 leaves, with a degraded uplink or without one."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch, program
from labkit.grade.outcome import Finding

SIZES = (4, 8, 16, 5, 7, 6, 11, 33, 64, 100, 3)
NOISE, MOST_TIMES = 0.04, 2
THRESHOLDS = (1.1, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.75)
Healthy = dict[int, float]


def cases(draw: Draw) -> list[Case]:
    """Each size with the first, the last and other leaves degraded, and with none."""
    rng, asked = draw.rng, []
    for n in SIZES:
        chosen = {0, n - 1, n // 2, (n - 1) // 2, rng.randrange(n), rng.randrange(n)}
        for degraded in [*sorted(chosen), None]:
            first_s = rng.uniform(0.01, 0.1)
            healthy_s = {k: first_s * k * rng.uniform(0.98, 1.0) for k in range(2, n + 1)}
            what = "none degraded" if degraded is None else f"leaf {degraded} degraded"
            factor = rng.uniform(2, 2.5)
            case = Case(f"{n} leaves, {what}", n, healthy_s, degraded, factor, rng.random())
            asked.append(case)
    return asked


def traffic(
    leaves: Sequence[int], healthy_s: Healthy, degraded: int | None, factor: float, seed: float
) -> float:
    """Seconds: the same each time for the same leaves."""
    noise = random.Random(f"{seed} {sorted(leaves)}").uniform(-NOISE, NOISE)
    slower = factor if degraded in leaves else 1
    return healthy_s[len(leaves)] * (1 + noise) * slower


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Call the learner's function with a network, and note what it asks for."""
    n, healthy_s, degraded, factor, seed = args
    asked: dict[tuple[int, ...], int] = {}

    def measure(leaves: list[int]) -> float:
        chosen = sorted(leaves)
        if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(n)):
            raise ValueError(f"measure({leaves}): the leaves are different ones from 0 to {n - 1}")
        if len(chosen) < 2:
            raise ValueError(f"measure({leaves}): a single leaf has nobody to send to")
        asked[tuple(chosen)] = asked.get(tuple(chosen), 0) + 1
        if asked[tuple(chosen)] > MOST_TIMES:
            raise RuntimeError(f"measure({leaves}) was asked for {MOST_TIMES + 1} times")
        watch.note("measure", chosen)
        return traffic(chosen, healthy_s, degraded, factor, seed)

    return watch.function(n, dict(healthy_s), measure)


def right(n: int, healthy_s: Healthy, degraded: int | None, factor: float, seed: float) -> Any:
    """What the network was made with."""
    return degraded


def asked_for(s: Observed) -> list[list[int]]:
    """The lists of leaves, in order."""
    return [event.value for event in s.ranks[0].notes]


def budget(s: Observed) -> int:
    """Calls of measure."""
    return math.ceil(math.log2(s.args[0])) + 2


def is_over(s: Observed) -> bool:
    """Whether there were more calls."""
    return len(asked_for(s)) > budget(s)


def asks_each_leaf(s: Observed) -> bool:
    """Whether few leaves were measured at a time, and nearly as often as there are leaves."""
    few = [leaves for leaves in asked_for(s) if len(leaves) <= 2]
    return is_over(s) and len(few) > len(asked_for(s)) / 2 and len(few) > 2 * math.log2(s.args[0])


def asks_both_halves(s: Observed) -> bool:
    """Whether lists without a leaf in common follow each other."""
    pairs = list(itertools.pairwise(asked_for(s)))
    apart = [not set(one) & set(other) for one, other in pairs]
    return is_over(s) and not asks_each_leaf(s) and sum(apart) >= len(asked_for(s)) / 3


def left(s: Observed, lists: list[list[int]]) -> set[int]:
    """The leaves that may be degraded, by these measurements."""
    candidates = set(range(s.args[0]))
    for leaves in lists:
        candidates = candidates & set(leaves) if s.right[0] in leaves else candidates - set(leaves)
    return candidates


def cannot_tell(s: Observed) -> bool:
    """Whether the last measurement was of both of two candidates."""
    *before, last = asked_for(s)
    pair = left(s, before)
    return len(pair) == 2 and pair <= set(last)


def stops_early(s: Observed) -> bool:
    """Whether two candidates are left, and the last measurement has narrowed them down to these."""
    return len(left(s, asked_for(s))) == 2 and not cannot_tell(s)


def fault(s: Observed) -> Finding | None:
    """Right, but with too many measurements."""
    if s.wrong_ranks or not is_over(s):
        return None
    told = f"{s.label}: {len(asked_for(s))} calls of measure, and {budget(s)} are enough"
    why = "halve the candidates with each measurement: ceil(log2(n)) of them leave one"
    return Finding(Outcome.OVER_BUDGET, "measures too often", why, told, 2)


def search(
    *,
    reference: Callable[[int, int], int] = lambda k, n: k,
    turned: bool = False,
    drops_odd: bool = False,
    thresholds: Sequence[float] = THRESHOLDS,
) -> list[Callable[..., Any]]:
    """Formulas: bisection with this mistake, with any threshold, halves rounded up or down."""

    def found(limit: float, up: int, n: int, healthy_s: Healthy, *network: Any) -> int | None:
        def is_slow(leaves: list[int]) -> bool:
            seconds = traffic(leaves, healthy_s, *network)
            return seconds > limit * healthy_s[reference(len(leaves), n)]

        candidates, cleared = list(range(n)), list[int]()
        if not is_slow(candidates):
            return None
        while len(candidates) > 1:
            middle = (len(candidates) + up) // 2
            half, rest = candidates[:middle], candidates[middle:]
            rest = rest[:middle] if drops_odd else rest
            partner = cleared[:1] if middle == 1 else []
            if is_slow(half + partner) != turned:
                candidates, cleared = half, cleared + rest
            else:
                candidates, cleared = rest, cleared + half
        return candidates[0]

    return [partial(found, limit, up) for limit in thresholds for up in (1, 0)]


CHECK = "    if not is_slow(candidates):\n        return None\n"
ASKS = "if is_slow(half + partner):"
ONE_BY_ONE = """
def find_degraded(n, healthy_s, measure):
    for leaf in range(n):
        others = [(leaf + 1) % n], [(leaf + 2) % n]
        if all(measure([leaf] + other) > 1.4 * healthy_s[2] for other in others):
            return leaf
    return None
"""
MISTAKES = [
    Mistake(
        "compares with the healthy time of all leaves",
        "Fewer leaves take less time, since they share the core. Compare the time of k leaves with "
        "healthy_s[k], or half of a network with a slow uplink looks healthy.",
        hint=2,
        formula=search(reference=lambda k, n: n),
        made_by=patch("1.4 * healthy_s[len(leaves)]", "1.4 * healthy_s[n]"),
    ),
    Mistake(
        "takes noise for a slow uplink",
        "Healthy traffic is within 5% of healthy_s[k], above or below. Draw the line between 1.05 "
        "and 1.8 times as long.",
        hint=3,
        formula=search(thresholds=(1.0, 1.005, 1.01, 1.02, 1.03)),
        made_by=patch("> 1.4 * healthy_s", "> healthy_s"),
    ),
    Mistake(
        "names a leaf where none is degraded",
        "Bisection always ends at some leaf. Measure all leaves first, or the one that is left at "
        "the end: it may be healthy, too.",
        hint=2,
        seen=lambda s: s.right[0] is None and type(s.y) is int,
        made_by=patch(CHECK, ""),
    ),
    Mistake(
        "goes on with the healthy half",
        "The slow half has the degraded uplink; the other half is cleared.",
        formula=search(turned=True),
        made_by=patch(ASKS, "if not is_slow(half + partner):"),
    ),
    Mistake(
        "forgets a leaf of an odd number",
        "Two halves of m leave one of 2 m + 1 candidates out. One half has m + 1.",
        hint=2,
        formula=search(drops_odd=True),
        made_by=patch(
            *("(len(candidates) + 1) // 2", "len(candidates) // 2"),
            *("candidates[middle:]", "candidates[middle : 2 * middle]"),
        ),
    ),
    Mistake(
        "lets two candidates send to each other",
        "Traffic passes the uplinks of both ends, so two candidates are slow whichever is the "
        "degraded one. A single candidate sends to a leaf that is cleared.",
        hint=3,
        seen=cannot_tell,
        made_by=patch("partner = cleared[:1]", "partner = rest[:1]"),
    ),
    Mistake(
        "stops with two candidates",
        "One more measurement tells which of the two it is: the loop goes on until one is left.",
        hint=3,
        seen=stops_early,
        made_by=patch("len(candidates) > 1:", "len(candidates) > 2:"),
    ),
    Mistake(
        "measures a single leaf",
        "A single leaf has nobody to send to. Add a leaf that an earlier measurement has cleared; "
        "with n of 3 the first half needs two leaves.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "a single leaf has nobody" in s.error,
        made_by=patch("cleared[:1] if len(half) == 1 else []", "[]"),
    ),
    Mistake(
        "narrows down to the same leaves again",
        "Halves that overlap do not shrink: of two candidates two are left. Each leaf belongs to "
        "one half.",
        hint=2,
        outcome=Outcome.CRASHED,
        seen=lambda s: "was asked for" in s.error,
        made_by=patch("candidates[:middle], c", "candidates[: middle + 1], c"),
    ),
    Mistake(
        "measures leaf by leaf",
        "That takes about n measurements. Halve the candidates: 100 leaves take 7.",
        outcome=Outcome.OVER_BUDGET,
        seen=asks_each_leaf,
        made_by=program(ONE_BY_ONE),
    ),
    Mistake(
        "measures both halves",
        "One half says it: where it is healthy, the other one is slow.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=asks_both_halves,
        made_by=patch(ASKS, f"len(rest) > 1 and is_slow(rest)\n        {ASKS}"),
    ),
]

GRADER = Questions(
    name="bisect_the_network",
    functions=("find_degraded",),
    cases=cases,
    right=right,
    call=call,
    num_arguments=3,
    mistakes=MISTAKES,
    fault=fault,
    closed=("labkit.measure",),
    shown="you find one degraded uplink of up to 100 in ceil(log2(n)) + 2 measurements or fewer, "
    "and say so where there is none",
)
