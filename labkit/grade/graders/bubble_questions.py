"""Drills about the bubble, drawn for each check, and what the event simulation says of them."""

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from labkit import pipeline
from labkit.grade.answers import Question
from labkit.pipeline.op import Row

SCHEDULES: dict[str, Row] = {
    "naive": pipeline.naive,
    "gpipe": pipeline.gpipe,
    "1f1b": pipeline.one_f_one_b,
    "interleaved": pipeline.interleaved,
    "zb_h1": pipeline.zero_bubble_h1,
}
CONVENTIONS = ("total", "ideal")
_PERCENTS = (5, 8, 10, 12, 15, 20, 25, 30)


@dataclass(frozen=True)
class Drill:
    """A pipeline, and what is asked of it: its bubble, or microbatches for a bubble."""

    p: int
    schedule: str
    virtual: int
    relative_to: str
    m: int = 0
    percent: int = 0
    """0: the bubble of m microbatches is asked for."""

    @property
    def arguments(self) -> tuple[int, int, str, int, str]:
        """Of either function, in order."""
        given = self.percent or self.m
        return (self.p, given, self.schedule, self.virtual, self.relative_to)

    def __str__(self) -> str:
        asked = f"at most {self.percent}%" if self.percent else f"m={self.m}"
        virtual = f" of {self.virtual} stages per rank" if self.virtual > 1 else ""
        return f"p={self.p}, {asked}, {self.schedule}{virtual}, relative to {self.relative_to}"


@functools.cache
def times(p: int, m: int, schedule: str, virtual: int) -> tuple[Fraction, Fraction]:
    """(idle, busy) time of all ranks, of the schedule performed: exact, for all costs are 1."""
    choices = {"virtual": virtual} if schedule == "interleaved" else {}
    timing = pipeline.simulate(pipeline.plan(SCHEDULES[schedule], p, m, **choices))
    busy = Fraction(sum(timing.busy))
    return Fraction(timing.makespan) * p - busy, busy


def share(drill: Drill, m: int) -> Fraction:
    """The bubble of m microbatches."""
    idle, busy = times(drill.p, m, drill.schedule, drill.virtual)
    return idle / (busy if drill.relative_to == "ideal" else idle + busy)


def right_bubble(drill: Drill) -> float:
    """By the simulation."""
    return float(share(drill, drill.m))


def right_microbatches(drill: Drill) -> int | None:
    """By the simulation: the fewest that are enough, where one fewer is not."""
    limit = Fraction(drill.percent, 100)
    if drill.schedule == "naive":  # the same step, m times
        return 1 if share(drill, 1) <= limit else None
    step = drill.p if drill.schedule == "interleaved" else 1
    least = drill.p if drill.schedule in ("interleaved", "zb_h1") else 1
    m = least
    while share(drill, m) > limit:  # more microbatches, smaller bubble
        m *= 2
    low = m // 2 // step * step if m > least else least - step  # not enough, or not there
    while m - low > step:
        middle = low + (m - low) // (2 * step) * step
        low, m = (low, middle) if share(drill, middle) <= limit else (middle, m)
    return m


def is_at_the_edge(drill: Drill) -> bool:
    """Whether the fewest microbatches have just the bubble that is allowed."""
    fewest = right_microbatches(drill)
    return fewest is not None and share(drill, fewest) == Fraction(drill.percent, 100)


def draw(rng: random.Random) -> list[Question[Drill]]:
    """Of both functions, the plain ones first."""
    bubbles, inverses = list(_bubbles(rng)), list(_inverses(rng))
    return [
        *(Question("bubble", each.arguments, str(each), each) for each in bubbles),
        *(Question("microbatches_for", each.arguments, str(each), each) for each in inverses),
    ]


def _bubbles(rng: random.Random) -> Iterator[Drill]:
    for schedule in ("1f1b", "gpipe", "interleaved", "zb_h1", "naive"):
        for relative_to in CONVENTIONS:
            for _ in range(2):
                p = rng.randrange(3, 9)
                virtual = rng.randrange(2, 5) if schedule == "interleaved" else 1
                m = p * rng.randrange(1, 5) if schedule == "interleaved" else rng.randrange(p, 33)
                yield Drill(p, schedule, virtual, relative_to, m)
    for schedule in ("1f1b", "gpipe"):  # fewer microbatches than ranks
        for relative_to in CONVENTIONS:
            p = rng.randrange(5, 9)
            yield Drill(p, schedule, 1, relative_to, rng.randrange(1, p - 2))
    yield Drill(rng.randrange(3, 9), "1f1b", 1, "ideal", 1)
    p = rng.randrange(2, 5)
    yield Drill(p, "interleaved", 1, "total", p * rng.randrange(1, 4))
    for schedule in SCHEDULES:  # one rank never waits
        yield Drill(1, schedule, 1, rng.choice(CONVENTIONS), rng.randrange(1, 9))


def _inverses(rng: random.Random) -> Iterator[Drill]:
    for schedule in ("1f1b", "gpipe", "interleaved", "zb_h1"):
        for relative_to in CONVENTIONS:
            for wants_edge in (False, True):
                yield _inverse(rng, schedule, relative_to, wants_edge)
    yield from _where_floats_round_up(rng)
    p = rng.randrange(6, 9)
    yield Drill(p, "zb_h1", 1, "ideal", percent=rng.randrange(35, 60))  # fewer than p were enough
    p = rng.randrange(5, 9)
    yield Drill(p, rng.choice(("1f1b", "gpipe")), 1, "ideal", percent=rng.randrange(110, 160, 10))
    yield Drill(rng.randrange(3, 9), "naive", 1, "total", percent=rng.choice(_PERCENTS))
    yield Drill(rng.randrange(3, 9), "naive", 1, "ideal", percent=rng.choice(_PERCENTS))
    yield Drill(2, "naive", 1, "total", percent=50)
    yield Drill(1, rng.choice(("1f1b", "interleaved")), 1, "total", percent=5)
    yield Drill(1, "naive", 1, "ideal", percent=5)


def _inverse(rng: random.Random, schedule: str, relative_to: str, wants_edge: bool) -> Drill:
    while True:
        virtual = rng.randrange(2, 5) if schedule == "interleaved" else 1
        drill = Drill(
            rng.randrange(3, 9), schedule, virtual, relative_to, percent=rng.choice(_PERCENTS)
        )
        # Beyond the fewest that the schedule can have: there the formula decides.
        if _is_large(drill) and is_at_the_edge(drill) is wants_edge:
            return drill


def _is_large(drill: Drill) -> bool:
    fewest = right_microbatches(drill)
    return fewest is not None and fewest > drill.p


def _where_floats_round_up(rng: random.Random) -> Iterator[Drill]:
    """At the edge, where the quotients of the usual formulas come out a little above it.

    With q = percent / 100: (p - 1) * (1 - q) / q; (p - 1) / (q / (1 - q)); (p - 1) * ((1 - q) / q).
    """
    for p, percent in (
        rng.choice(((4, 12), (7, 12), (4, 20), (7, 20))),
        rng.choice(((4, 6), (7, 6))),
    ):
        yield Drill(p, "1f1b", 1, "total", percent=percent)
    yield Drill(8, "gpipe", 1, "total", percent=35)
    # 100 * bubble, tried one after the other; (p - 1)/3 * (100/percent - 1)
    yield Drill(8, "1f1b", 1, "total", percent=7)
    yield Drill(8, "zb_h1", 1, "total", percent=7)
    # (p - 1)/(3 q) - (p - 1)/3; idle <= q * (m + idle); (p - 1)/3 * (1/q - 1)
    yield Drill(5, "zb_h1", 1, "total", percent=16)
    yield Drill(6, "zb_h1", 1, "total", percent=4)
    yield Drill(8, "zb_h1", 1, "total", percent=1)
