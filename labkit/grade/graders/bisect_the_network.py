"""Grade bisect_the_network: networks of 3 to 100 leaves, with a degraded uplink or without one."""

import itertools
import math
import random
from collections import Counter
from typing import Any

from labkit.grade import grader as g
from labkit.grade.outcome import Finding


def cases(draw: g.Draw) -> list[g.Case]:
    """Each size with the first, the last and other leaves degraded, and with none."""
    rng, listed = draw.rng, []
    for n in (4, 8, 16, 5, 7, 6, 11, 33, 64, 100, 3):
        chosen = {0, n - 1, n // 2, (n - 1) // 2, rng.randrange(n), rng.randrange(n)}
        for degraded in [*sorted(chosen), None]:
            first_s = rng.uniform(0.01, 0.1)
            healthy_s = {k: first_s * k * rng.uniform(0.98, 1.0) for k in range(2, n + 1)}
            what = f"{n} leaves, {'none' if degraded is None else f'leaf {degraded}'} degraded"
            factor = rng.uniform(2, 2.5)
            listed.append(g.Case(what, n, healthy_s, degraded, factor, rng.random()))
    return listed


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Call the learner's function with a network, and note what it asks for."""
    n, healthy_s, degraded, factor, seed = args
    num_asked: Counter[str] = Counter()

    def measure(leaves: list[int]) -> float:
        chosen = sorted(leaves)
        if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(n)):
            raise ValueError(f"measure({leaves}): the leaves are different ones from 0 to {n - 1}")
        if len(chosen) < 2:
            raise ValueError(f"measure({leaves}): a single leaf has no other to send to")
        num_asked[f"{chosen}"] += 1
        if num_asked[f"{chosen}"] > 2:
            raise RuntimeError(f"measure({leaves}) was asked for 3 times")
        watch.note("measure", chosen)
        noise = random.Random(f"{seed} {chosen}").uniform(-0.04, 0.04)
        return float(healthy_s[len(chosen)] * (1 + noise) * (factor if degraded in chosen else 1))

    return watch.function(n, dict(healthy_s), measure)


def asked_for(s: g.Observed) -> list[list[int]]:
    """The lists of leaves, in order."""
    return [event.value for event in s.ranks[0].notes]


def budget(s: g.Observed) -> int:
    """Calls of measure."""
    return math.ceil(math.log2(s.args[0])) + 2


def asks_few_leaves(s: g.Observed) -> bool:
    """Whether most measurements were of two leaves, in too many measurements."""
    sizes = sorted(map(len, asked_for(s)))
    return len(sizes) > budget(s) and sizes[len(sizes) // 2] <= 2


def asks_both_halves(s: g.Observed) -> bool:
    """Whether lists without a leaf in common follow each other, in too many measurements."""
    asked = asked_for(s)
    num_apart = sum(not set(one) & set(other) for one, other in itertools.pairwise(asked))
    return len(asked) > budget(s) and num_apart >= len(asked) / 3 and not asks_few_leaves(s)


def fault(s: g.Observed) -> Finding | None:
    """Another leaf, or the right one with too many measurements."""
    if s.wrong_ranks:
        if s.y is not None and type(s.y) is not int:
            return None
        told = f"{s.label}: got {s.y}, expected {s.right[0]}"
        why = "write down after each measurement which leaves it leaves as candidates"
        return Finding(g.Outcome.WRONG, "names the wrong leaf", why, told, 2)
    if len(asked_for(s)) <= budget(s):
        return None
    told = f"{s.label}: {len(asked_for(s))} calls of measure, and {budget(s)} are enough"
    why = "halve the candidates with each measurement: ceil(log2(n)) of them leave one"
    return Finding(g.Outcome.OVER_BUDGET, "measures too often", why, told, 2)


CHECK = "    if not is_slow(candidates):\n        return None\n"
ASKS, LIMIT, MORE = (
    "if is_slow(half + partner):",
    "1.4 * healthy_s[len(leaves)]",
    "candidates) > 1:",
)
UP, DOWN = "(len(candidates) + 1) // 2", "len(candidates) // 2"
FIRST, LAST = "return candidates[0]", "return candidates[-1]"
ONE_BY_ONE = """
def find_degraded(n, healthy_s, measure):
    for leaf in range(n):
        others = [(leaf + 1) % n], [(leaf + 2) % n]
        if all(measure([leaf] + other) > 1.4 * healthy_s[2] for other in others):
            return leaf
    return None
"""
MISTAKES = [
    g.Mistake(
        "compares with the healthy time of another number of leaves",
        "More leaves take longer, since they share the core. Compare the time of k leaves with "
        "healthy_s[k]: with n for k, half of a network with a slow uplink looks healthy, and with "
        "2 for k a healthy half looks slow.",
        [
            g.patch(LIMIT, f"{limit} * healthy_s[{k}]", UP, half)
            for limit, k, half in itertools.product((1.2, 1.4, 1.6), ("n", "2"), (UP, DOWN))
        ],
        hint=2,
    ),
    g.Mistake(
        "takes noise for a slow uplink",
        "Healthy traffic is within 5% of healthy_s[k], above or below. Draw the line between 1.05 "
        "and 1.8 times as long.",
        [
            g.patch(LIMIT, f"{limit} * healthy_s[len(leaves)]", UP, half)
            for limit, half in itertools.product((1, 1.01, 1.02, 1.03), (UP, DOWN))
        ],
        hint=3,
    ),
    g.Mistake(
        "names a leaf where none is degraded",
        "Bisection always ends at some leaf. Measure all leaves first, or the one that is left at "
        "the end: it may be healthy, too.",
        g.patch(CHECK, ""),
        seen=lambda s: s.right[0] is None and type(s.y) is int,
        hint=2,
    ),
    g.Mistake(
        "goes on with the healthy half",
        "The slow half has the degraded uplink; the other half is cleared.",
        [g.patch(ASKS, "if not is_slow(half + partner):", UP, half) for half in (UP, DOWN)],
    ),
    g.Mistake(
        "forgets a leaf of an odd number",
        "Two halves of m leave one of 2 m + 1 candidates out. One half has m + 1.",
        g.patch(UP, DOWN, "candidates[middle:]", "candidates[middle : 2 * middle]"),
        hint=2,
    ),
    g.Mistake(
        "cannot tell the last two candidates apart",
        "Traffic passes the uplinks of both ends, so two candidates that send to each other are "
        "slow whichever is the degraded one. Go on until one is left: measure one of them with a "
        "leaf that is cleared.",
        [
            g.patch(*mistake, UP, half, FIRST, end)
            for mistake in ((MORE, MORE.replace("1", "2")), ("= cleared[:1]", "= rest[:1]"))
            for half, end in itertools.product((UP, DOWN), (FIRST, LAST))
        ],
        hint=3,
    ),
    g.Mistake(
        "measures a single leaf",
        "A single leaf has no other to send to. Add a leaf that an earlier measurement cleared; "
        "with n of 3 the first half needs two leaves.",
        g.patch("cleared[:1] if len(half) == 1 else []", "[]"),
        crashed=lambda s: "a single leaf has no other" in s.error,
        hint=3,
    ),
    g.Mistake(
        "narrows down to the same leaves again",
        "Halves that overlap do not shrink: of two candidates two are left. Each leaf belongs to "
        "one half.",
        g.patch("candidates[:middle], c", "candidates[: middle + 1], c"),
        crashed=lambda s: "was asked for" in s.error,
        hint=2,
    ),
    g.Mistake(
        "measures leaf by leaf",
        "That takes about n measurements. Halve the candidates: 100 leaves take 7.",
        g.program(ONE_BY_ONE),
        over_budget=asks_few_leaves,
    ),
    g.Mistake(
        "measures both halves",
        "One half says it: where it is healthy, the other one is slow.",
        g.patch(ASKS, f"len(rest) > 1 and is_slow(rest)\n        {ASKS}"),
        over_budget=asks_both_halves,
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=("find_degraded",),
    cases=cases,
    right=lambda n, healthy_s, degraded, factor, seed: degraded,
    call=call,
    mistakes=MISTAKES,
    fault=fault,
    closed=("labkit.measure",),
    shown="you find one degraded uplink of up to 100 in ceil(log2(n)) + 2 measurements or fewer, "
    "and say so where there is none",
)
