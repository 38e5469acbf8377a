"""Grade find_the_straggler: drawn runs in which a rank is late, was late once, or none is."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import mean, median
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, close, patch

Collective = list[tuple[int, int]]
Steps = list[list[Collective]]
Gains = Callable[[Collective], Sequence[float]]
"""The gain of each rank in a collective."""
LEAST = 100


def cases(draw: Draw) -> Iterator[Case]:
    """Three runs of each kind. The first has clocks that agree."""
    for kind in (
        "late",
        "late in one place",
        "late once",
        "late little",
        "healthy",
        "slow network",
    ):
        for number in range(3):
            steps = run(draw.rng, kind, has_one_clock=(kind, number) == ("late", 0))
            yield Case(f"{len(steps)} steps of {len(steps[0][0])} ranks", steps, LEAST)


def run(rng: Random, kind: str, has_one_clock: bool) -> Steps:
    """A run of 5 or 7 steps. Two ranks stand out: a straggler, and another one that is none."""
    n, num_steps, num_collectives = rng.randrange(3, 7), rng.choice((5, 7)), rng.randrange(3, 6)
    clocks = [0 if has_one_clock else rng.randrange(10**6) for _ in range(n)]
    straggler, other = rng.sample(range(n), 2)
    late, place = rng.randrange(250, 400), rng.randrange(num_collectives)
    now, steps = 0, []
    for number in range(num_steps):
        steps.append([[(0, 0)] * n for _ in range(num_collectives)])
        for at in range(num_collectives):
            arrivals = [now + 1000 + rng.randrange(20) for _ in range(n)]
            if kind == "late" or (kind in ("late in one place", "late little") and at == place):
                arrivals[straggler] += late
            elif kind == "late in one place":
                arrivals[straggler] -= rng.randrange(200, 300)
            elif kind == "late little":  # the other one, in all other places
                arrivals[other] += 70
            if kind == "late once" and number in (1, num_steps - 2):
                arrivals[other] += 5000
            elif kind == "late once":
                arrivals[straggler] += late
            now = max(arrivals) + rng.randrange(50, 90) + 4000 * (kind == "slow network")
            steps[-1][at] = [(each + clocks[r], now + clocks[r]) for r, each in enumerate(arrivals)]
    return steps


def by_rank(times: Sequence[float], reference: Callable[..., float] = max) -> list[float]:
    """By how much each time is later than the latest (or another one) of the others; at least 0."""
    others = [[*times[:rank], *times[rank + 1 :]] for rank in range(len(times))]
    return [max(0, at - reference(rest)) for at, rest in zip(times, others, strict=True)]


def aligned(collective: Collective) -> list[float]:
    """Arrivals, on a clock that is 0 at the end of the collective."""
    return [arrival - end for arrival, end in collective]


def gains_of(collective: Collective) -> list[float]:
    """The right ones."""
    return by_rank(aligned(collective))


def totals(collectives: Sequence[Collective], count: Gains) -> list[float]:
    """By rank, the sum over collectives."""
    return [sum(its) for its in zip(*map(count, collectives), strict=True)]


def answer(
    steps: Steps,
    least: float,
    gains: Gains = gains_of,
    typical: Callable[[Sequence[float]], float] = median,
    most: Gains | None = None,
) -> Any:
    """The answer to other definitions of a gain, or for the rank with most of something."""
    in_steps = [totals(step, gains) for step in steps]
    found = [typical(its) for its in zip(*in_steps, strict=True)]
    by = totals(sum(steps, []), most) if most else found
    rank = by.index(max(by))
    return (rank, found[rank]) if found[rank] >= least else None


def right(steps: Steps, least: int) -> tuple[int, int] | None:
    """By the arrivals in each collective, on one clock."""
    return answer(steps, least)  # type: ignore[no-any-return]


def is_answer(*answers: Callable[[Steps, int], Any]) -> Callable[[Observed], bool]:
    """Predicate: one of those wrong answers."""
    return lambda s: bool(s.wrong_ranks) and any(close(s.y, each(*s.args)) for each in answers)


def with_gains(*gains: Gains) -> Callable[[Observed], bool]:
    """Predicate: the answer to one of those definitions of a gain."""
    return is_answer(*(lambda steps, least, g=g: answer(steps, least, g) for g in gains))


def waits_longer(s: Observed) -> bool:
    """Whether the rank waits longer than the mean of all."""
    waited = totals(sum(s.xs, []), lambda collective: [-at for at in aligned(collective)])
    return s.y[0] != s.right[0][0] and waited[s.y[0]] >= mean(waited)


def from_another(reference: Callable[..., float], only_last: bool) -> Gains:
    """Gains measured from another rank than the last of the others."""
    return lambda collective: [
        gain if is_it or not only_last else 0
        for gain, is_it in zip(
            by_rank(aligned(collective), reference), is_last(collective), strict=True
        )
    ]


def is_last(collective: Collective) -> list[float]:
    """1 for the rank that arrived last."""
    times = aligned(collective)
    return [each == max(times) for each in times]


def other_units(s: Observed) -> Iterator[tuple[int, float]]:
    """The straggler with its gain in all steps, and in a collective."""
    rank, gain = s.right[0]
    by_step = [[gains_of(collective)[rank] for collective in step] for step in s.xs]
    yield rank, sum(map(sum, by_step))
    yield rank, gain / len(by_step[0])
    yield rank, median(sum(by_step, []))
    yield rank, mean(sum(by_step, []))


GAIN = "gains[waits.index(last)][number] += second - last"
MISTAKES = [
    Mistake(
        "takes the rank that waits longest",
        "In the profile of the straggler the collectives are short: when it arrives, all others "
        "are there. The others wait for it, and theirs are long.",
        seen=waits_longer,
        made_by=patch(GAIN, "for r, wait in enumerate(waits): gains[r][number] += wait - last"),
    ),
    Mistake(
        "compares times of different clocks",
        "Each host has its own clock. Compare waits, which are differences of one clock, or shift "
        "the clocks so that the ends of a collective agree.",
        seen=with_gains(lambda collective: by_rank([arrival for arrival, _ in collective])),
        made_by=patch("[end - arrival for", "[-arrival for"),
    ),
    Mistake(
        "lets a slow step decide",
        "One checkpoint that takes long raises the mean and the sum of a rank that is on time in "
        "all other steps. Take the median over the steps.",
        hint=2,
        seen=is_answer(
            *(
                lambda steps, least, typical=typical: answer(steps, least, typical=typical)
                for typical in (mean, sum, max)
            )
        ),
        made_by=patch("sorted(by_step)[len(by_step) // 2]", "sum(by_step) / len(by_step)"),
    ),
    Mistake(
        "names a rank in a healthy run",
        "In each collective some rank is the last. If the largest gain is below `least`, it is "
        "noise, and a slow network makes all ranks wait alike: return None.",
        seen=is_answer(lambda steps, least: answer(steps, 0)),
        made_by=patch(" if typical[rank] >= least else None", ""),
    ),
    Mistake(
        "measures the gain from another rank than the second to last",
        "Without the straggler the collective begins when the last of the other ranks arrives. It "
        "does not begin with the first rank, or at the mean of all.",
        hint=2,
        seen=with_gains(
            *(from_another(each, only) for each in (min, mean, median) for only in (True, False)),
            lambda collective: [x - mean(aligned(collective)) for x in aligned(collective)],
        ),
        made_by=patch(GAIN, GAIN.replace("second", "max(waits)")),
    ),
    Mistake(
        "takes off what a rank is early elsewhere",
        "A rank that is early in one collective does not make it begin earlier. In a collective "
        "the gain of each rank but the last is 0, and not negative.",
        hint=3,
        seen=with_gains(
            lambda collective: [
                gain or at - max(aligned(collective))
                for gain, at in zip(gains_of(collective), aligned(collective), strict=True)
            ]
        ),
        made_by=patch(
            GAIN,
            "for r, wait in enumerate(waits):\n"
            "                gains[r][number] += (second if wait == last else last) - wait",
        ),
    ),
    Mistake(
        "counts how often a rank is last",
        "A rank may be the last in most collectives, and late by little. What counts is by how "
        "much.",
        hint=2,
        seen=is_answer(lambda steps, least: answer(steps, least, most=is_last)),
        made_by=patch(
            "key=lambda r: typical[r]",
            "key=lambda r: sum(c[r][1] - c[r][0] == min(e - a for a, e in c)\n"
            "               for step in steps for c in step)",
        ),
    ),
    Mistake(
        "returns the gain of something else than a step",
        "The rank is right. Its gain in a step is the sum over the step's collectives. Of these "
        "sums the gain is the median, not the sum.",
        hint=3,
        seen=lambda s: s.y[0] == s.right[0][0] and any(close(s.y, each) for each in other_units(s)),
        made_by=patch("(rank, typical[rank])", "(rank, sum(gains[rank]))"),
    ),
    Mistake(
        "finds no straggler where there is one",
        "A rank delays the others by at least `least` in most steps. Its gain is what it delays "
        "one step by, in all collectives together.",
        seen=lambda s: s.y is None and s.right[0] is not None,
        made_by=patch("typical[rank] >= least", "typical[rank] >= 100 * least"),
    ),
]

GRADER = Questions(
    name="find_the_straggler",
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    shown="you name the rank for which the others wait, though it waits least itself, on clocks "
    "that differ, and none in a healthy run or on a slow network",
)
