"""The bubble as formulas that can each be wrong: of the ideal time, by convention, inverted.

Exact, in Fractions. What is right is told by the event simulation (bubble_questions.py); the idea
as it stands agrees with it, and mistakes are ideas in which one part is another.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from labkit.grade.graders.bubble_questions import Drill

Share = Fraction
OfIdeal = Callable[[Drill, int], Share]
"""From a drill and its microbatches: idle time as a share of the time of work."""


def divided(drill: Drill) -> int:
    """By what the schedule makes 1F1B's bubble smaller."""
    return {"interleaved": drill.virtual, "zb_h1": 3}.get(drill.schedule, 1)


def of_ideal(drill: Drill, m: int) -> Share:
    """As it is."""
    if drill.schedule == "naive":
        return Share(drill.p - 1)
    return Share(drill.p - 1, divided(drill) * m)


def by_convention(drill: Drill, of_ideal: Share) -> Share:
    """x of ideal is x / (1 + x) of total."""
    return as_total(drill, of_ideal) if drill.relative_to == "total" else of_ideal


def as_total(drill: Drill, of_ideal: Share) -> Share:
    """Of total, whatever is asked."""
    return of_ideal / (1 + of_ideal)


def as_ideal(drill: Drill, of_ideal: Share) -> Share:
    """Of ideal, whatever is asked."""
    return of_ideal


def as_the_other(drill: Drill, of_ideal: Share) -> Share:
    """By the convention that is not asked for."""
    return of_ideal if drill.relative_to == "total" else as_total(drill, of_ideal)


def step(drill: Drill) -> int:
    """Numbers of microbatches go by this many."""
    return drill.p if drill.schedule == "interleaved" else 1


def first(drill: Drill) -> int:
    """The fewest microbatches that the schedule can have."""
    return drill.p if drill.schedule in ("interleaved", "zb_h1") else 1


@dataclass(frozen=True)
class Idea:
    """As it stands: right."""

    of_ideal: OfIdeal = of_ideal
    convention: Callable[[Drill, Share], Share] = by_convention
    step: Callable[[Drill], int] = step
    first: Callable[[Drill], int] = first

    def bubble(self, drill: Drill) -> float:
        """The bubble of `drill.m` microbatches, as it is answered."""
        return float(self.share(drill, drill.m))

    def share(self, drill: Drill, m: int) -> Share:
        """The bubble of m microbatches."""
        return self.convention(drill, self.of_ideal(drill, m))

    def fewest(self, drill: Drill) -> int | None:
        """The fewest microbatches with which the bubble is at most `drill.percent`."""
        limit, start, step = Share(drill.percent, 100), self.first(drill), self.step(drill)
        choices = range(start, start + 200 * drill.p * step, step)  # 1% of 1F1B needs 100 p
        at = bisect_left(choices, True, key=lambda m: self.share(drill, m) <= limit)
        return choices[at] if at < len(choices) else None
