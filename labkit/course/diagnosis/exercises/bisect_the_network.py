"""Grade bisect_the_network: networks of 3 to 100 leaves, with a degraded uplink or without one."""

import math
import random
from collections import Counter
from typing import Any

from labkit.grade import grader as g


def cases(draw: g.Draw) -> list[g.Case]:
    """Return each size with the first, the last and other leaves degraded, and with none."""
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
        num_asked[str(chosen)] += 1
        if num_asked[str(chosen)] > 2:
            raise RuntimeError(f"measure({leaves}) was asked for 3 times")
        watch.note("measure", chosen)
        noise = random.Random(f"{seed} {chosen}").uniform(-0.04, 0.04)
        return float(healthy_s[len(chosen)] * (1 + noise) * (factor if degraded in chosen else 1))

    return watch.function(n, dict(healthy_s), measure)


def asked_for(s: g.Observed) -> list[list[int]]:
    """Return the lists of leaves, in order."""
    return [note.value for note in s.ranks[0].notes]


def most_calls(s: g.Observed) -> int:
    """Return the budget."""
    return math.ceil(math.log2(s.args[0])) + 2


def describe(s: g.Observed) -> str:
    """Return the leaves, or how often it measured."""
    if s.wrong_ranks:
        return f"got {s.y}, expected {s.right[0]}"
    return f"{len(asked_for(s))} calls of measure, and {most_calls(s)} are enough"


LIMIT, UP, DOWN = (
    "1.4 * healthy_s[len(leaves)]",
    "(len(candidates) + 1) // 2",
    "len(candidates) // 2",
)
IS_SLOW = "if is_slow(half + partner):"
MISTAKES = [
    g.Mistake(
        "compares with the healthy time of another number of leaves",
        "More leaves take longer, since they share the core. Compare the time of k leaves with "
        "healthy_s[k]: with n for k, half of a network with a slow uplink looks healthy, and with "
        "2 for k a healthy half looks slow.",
        [
            g.patch(LIMIT, f"1.4 * healthy_s[{k}]", UP, half)
            for k in ("n", "2")
            for half in (UP, DOWN)
        ],
        hint=2,
    ),
    g.Mistake(
        "takes noise for a slow uplink",
        "Healthy traffic is within 5% of healthy_s[k], above or below. Draw the line between 1.05 "
        "and 1.8 times as long.",
        [g.patch(LIMIT, "healthy_s[len(leaves)]", UP, half) for half in (UP, DOWN)],
        hint=3,
    ),
    g.Mistake(
        "names a leaf where none is degraded",
        "Bisection always ends at some leaf. Measure all leaves first, or the one that is left at "
        "the end: it may be healthy, too.",
        g.patch("if not is_slow(candidates):", "if False:"),
        wrong=lambda s: s.right[0] is None and type(s.y) is int,
        hint=2,
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
            g.patch("candidates) > 1:", "candidates) > 2:", UP, half, "return candidates[0]", end)
            for half in (UP, DOWN)
            for end in ("return candidates[0]", "return candidates[-1]")
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
        "measures too often",
        "Leaf by leaf takes about n measurements. Halve the candidates instead, and measure one "
        "half only: where it is healthy, the other one is slow. 100 leaves take 7 measurements, "
        "and one more says whether any uplink is degraded.",
        g.patch(IS_SLOW, f"len(rest) > 1 and is_slow(rest)\n        {IS_SLOW}"),
        over_budget=lambda s: len(asked_for(s)) > most_calls(s),
    ),
]

GRADER = g.Questions(
    functions=("find_degraded",),
    cases=cases,
    right=lambda n, healthy_s, degraded, factor, seed: degraded,
    call=call,
    mistakes=MISTAKES,
    describe=describe,
    unexplained=(
        "names the wrong leaf",
        "write down after each measurement which leaves it leaves as candidates",
    ),
    closed=("labkit.measure",),
    shown="you find one degraded uplink of up to 100 in ceil(log2(n)) + 2 measurements or fewer, "
    "and say so where there is none",
)
