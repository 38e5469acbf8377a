"""An interview that goes on: what has been taken, how much time is left, and the report of it.

The clock decides what is still asked, and never cuts an answer off: whoever speaks finishes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labkit import progress
from labkit.interview.mock.plan import Item, Plan
from labkit.interview.mock.report import GIVEN_UP, Report, Taken

_SECONDS = 60


@dataclass
class Interview:
    """Items of a plan, one after another, until there are none or the time is up."""

    plan: Plan
    clock: Callable[[], float] = time.monotonic
    taken: list[Taken] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began_s = self._since_s = self.clock()
        self._is_recorded = False

    @property
    def left_s(self) -> float:
        """Seconds until the time is up; below 0 afterwards."""
        return self.plan.minutes * _SECONDS - (self.clock() - self._began_s)

    @property
    def item_left_s(self) -> float:
        """Seconds of those that are meant for the item in hand; below 0 beyond, 0 at the end."""
        if len(self.taken) == len(self.plan.items):
            return 0.0
        meant_s = self.plan.items[len(self.taken)].minutes * _SECONDS
        return meant_s - (self.clock() - self._since_s)

    @property
    def next_item(self) -> Item | None:
        """What to ask now; None at the end."""
        if len(self.taken) == len(self.plan.items) or self.left_s <= 0:
            return None
        return self.plan.items[len(self.taken)]

    def take(self, item: Item, score: float, missed: Sequence[str] = ()) -> Taken:
        """Note how an item went: score from 0 to 1, and what was missing, in words.

        Raises ValueError for another item than the next one, and for a score beyond.
        """
        if len(self.taken) == len(self.plan.items) or item != self.plan.items[len(self.taken)]:
            raise ValueError(f"{item.kind} {item.name} is not what comes next in this interview")
        if not 0 <= score <= 1:
            raise ValueError(f"score={score}: give a share, from 0 to 1")
        now_s = self.clock()
        self.taken.append(Taken(item, float(score), tuple(missed), now_s - self._since_s))
        self._since_s = now_s
        return self.taken[-1]

    def give_up(self) -> None:
        """The item in hand was shown, and the interview is ended: it counts 0. At its end: nothing.

        Whoever calls this has shown it; what was never shown counts nothing, and is not taken.
        """
        if len(self.taken) < len(self.plan.items):
            self.take(self.plan.items[len(self.taken)], 0, [GIVEN_UP])

    def report(self) -> Report:
        """Of what was taken; the first call remembers it with the learner's progress."""
        found = Report(self.plan, tuple(self.taken), self.clock() - self._began_s)
        if not self._is_recorded and self.taken:
            self._is_recorded = True
            progress.record(
                "mock",
                self.plan.level,
                minutes=self.plan.minutes,
                seed=self.plan.seed,
                score=round(found.score, 3),
                by_group={group: round(score, 3) for group, (score, _) in found.by_group.items()},
            )
        return found
