"""Grade find_the_straggler: drawn runs in which a rank is late, was late once, or none is."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import mean, median
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, close, patch

Steps = list[list[list[tuple[int, int]]]]
Gains = Callable[[list[int]], list[float]]
"""The gain of each rank in a collective, from the ranks' arrivals."""
LEAST = 100


def cases(draw: Draw) -> Iterator[Case]:
    """Three runs of each kind. The first has clocks that agree; the last gain is just enough."""
    kinds = ("late", "late in one place", "late once", "late little", "healthy", "slow network")
    for number, kind in enumerate(3 * kinds):
        steps = run(draw.rng, kind, has_one_clock=number == 0)
        yield Case(f"{len(steps)} steps of {len(steps[0][0])} ranks", steps, LEAST)
    steps = run(draw.rng, "late", has_one_clock=False)
    yield Case("a gain that is just enough", steps, answer(by_step(steps), 0)[1])


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


def gains_of(times: list[int], reference: Callable[..., float] = max) -> list[float]:
    """By how much each arrival is later than the last (or another one) of the others."""
    others = [[*times[:rank], *times[rank + 1 :]] for rank in range(len(times))]
    return [max(0, at - reference(rest)) for at, rest in zip(times, others, strict=True)]


def by_step(steps: Steps, gains: Gains = gains_of, is_aligned: bool = True) -> list[list[float]]:
    """The gains of each rank in each step; aligned: on a clock that is 0 at a collective's end."""

    def total(step: list[list[tuple[int, int]]]) -> list[float]:
        found = [gains([at - is_aligned * end for at, end in each]) for each in step]
        return [sum(its) for its in zip(*found, strict=True)]

    return [list(its) for its in zip(*map(total, steps), strict=True)]


def answer(
    found: list[list[float]],
    least: float,
    typical: Callable[[Sequence[float]], float] = median,
    most: Sequence[float] | None = None,
) -> Any:
    """The answer, with another mean over the steps, or for the rank with most of something."""
    by = most or [typical(its) for its in found]
    rank = by.index(max(by))
    return (rank, typical(found[rank])) if typical(found[rank]) >= least else None


def is_answer(*answers: Callable[[Steps, int], Any]) -> Callable[[Observed], bool]:
    """Predicate: one of those wrong answers."""
    return lambda s: bool(s.wrong_ranks) and any(close(s.y, each(*s.args)) for each in answers)


def with_gains(*gains: Gains, is_aligned: bool = True) -> Callable[[Observed], bool]:
    """Predicate: the answer to one of those definitions of a gain."""
    return lambda s: (
        bool(s.wrong_ranks)
        and any(close(s.y, answer(by_step(s.xs, each, is_aligned), s.args[1])) for each in gains)
    )


def sums(steps: Steps, count: Gains) -> list[float]:
    """By rank, the sum over all collectives."""
    return [sum(its) for its in by_step(steps, count)]


def waits_longer(s: Observed) -> bool:
    """Whether another rank than the straggler is named, which waits longer than the mean of all."""
    waits = sums(s.xs, lambda times: [-at for at in times])
    return s.y[0] != s.right[0][0] and waits[s.y[0]] >= mean(waits)


MEANS = (mean, sum, max)
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
        seen=with_gains(gains_of, is_aligned=False),
        made_by=patch("[end - arrival for", "[-arrival for"),
    ),
    Mistake(
        "lets a slow step decide",
        "One checkpoint that takes long raises the mean and the sum of a rank that is on time in "
        "all other steps. Take the median over the steps.",
        hint=2,
        seen=is_answer(
            *(lambda x, least, each=each: answer(by_step(x), least, each) for each in MEANS)
        ),
        made_by=patch("sorted(by_step)[len(by_step) // 2]", "sum(by_step) / len(by_step)"),
    ),
    Mistake(
        "names a rank in a healthy run",
        "In each collective some rank is the last. If the largest gain is below `least`, it is "
        "noise, and a slow network makes all ranks wait alike: return None.",
        seen=is_answer(lambda steps, least: answer(by_step(steps), 0)),
        made_by=patch(" if typical[rank] >= least else None", ""),
    ),
    Mistake(
        "measures the gain from another rank than the second to last",
        "Without the straggler the collective begins when the last of the other ranks arrives. It "
        "does not begin with the first rank, or at the mean of all.",
        hint=2,
        seen=with_gains(
            lambda times: gains_of(times, min),
            lambda times: gains_of(times, mean),
            lambda times: [at - mean(times) for at in times],
            lambda times: [(at - min(times)) * (at == max(times)) for at in times],
            lambda times: [(at - mean(times)) * (at == max(times)) for at in times],
        ),
        made_by=patch(GAIN, GAIN.replace("second", "max(waits)")),
    ),
    Mistake(
        "counts how often a rank is last",
        "A rank may be the last in most collectives, and late by little. What counts is by how "
        "much.",
        hint=2,
        seen=is_answer(
            lambda steps, least: answer(
                by_step(steps), least, most=sums(steps, lambda t: [at == max(t) for at in t])
            )
        ),
        made_by=patch(
            "key=lambda r: typical[r]",
            "key=lambda r: sum(c[r][1] - c[r][0] == min(e - a for a, e in c)\n"
            "               for step in steps for c in step)",
        ),
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
    right=lambda steps, least: answer(by_step(steps), least),
    mistakes=MISTAKES,
    describe=lambda s: f"got {s.y!r}, expected {s.right[0]!r}",
    picture=lambda s: "\n".join(
        f"step {number}, waits by rank: {[[end - at for at, end in each] for each in step]}"
        for number, step in enumerate(s.xs)
    ),
    shown="you name the rank for which the others wait, though it waits least itself, on clocks "
    "that differ, and none in a healthy run or on a slow network",
)
