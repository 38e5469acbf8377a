"""A running interview: items taken, time left, and the report.

The clock decides what is still asked, and never cuts an answer off.

A terminal and a notebook announce and score items in the same way:

question   the share of the points that were said, of its rubric and of its follow-up's; missed:
           the others
drill      1 at the first try, 1/2 at the second, else 0; missed: the traps walked into
case       the same
exercise   1 after a pass, 0 when it is given up
design     the mean of its parts; missed: those below one half

GivenExercise is the file of an exercise as it was when an interview asked for it, since code from
before does not count as an answer.
"""

import ast
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from labkit import progress
from labkit.grade.hints import has_passed
from labkit.grade.verdict import Outcome
from labkit.grade.workspace import find_workspace
from labkit.interview.cards import Card
from labkit.interview.cards.sitting import points_missed
from labkit.interview.design import DesignRound
from labkit.interview.drills.session import Asked, Round
from labkit.interview.evidence import can_run
from labkit.interview.mock.plan import EXERCISE, WITH_EXERCISE, Item, Plan, kind_of
from labkit.interview.mock.report import GIVEN_UP, Report, Taken

_SECONDS = 60


@dataclass
class Interview:
    """An interview: items of a plan, one after another, until the last one or the end of the
    time."""

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
        """Seconds left for the current item, negative if it takes longer; 0 after the last item."""
        if len(self.taken) == len(self.plan.items):
            return 0.0
        meant_s = self.plan.items[len(self.taken)].minutes * _SECONDS
        return meant_s - (self.clock() - self._since_s)

    @property
    def next_item(self) -> Item | None:
        """The item to ask now; None at the end."""
        if len(self.taken) == len(self.plan.items) or self.left_s <= 0:
            return None
        return self.plan.items[len(self.taken)]

    def take(self, item: Item, score: float, missed: Sequence[str] = ()) -> Taken:
        """Record the result of an item: a score from 0 to 1, and the missing points as text.

        Raises ValueError for another item than the next one, and for a score out of range.
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
        """Score the current item 0, because the interview is ended. At its end: do nothing.

        Call it only for an item that was shown; other items are not taken.
        """
        if len(self.taken) < len(self.plan.items):
            self.take(self.plan.items[len(self.taken)], 0, [GIVEN_UP])

    def report(self) -> Report:
        """Return the report on all items taken; the first call stores it with the learner's
        progress."""
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


SKIPPED = "skipped"
# If a file is missing or not Python, the interview goes on, and says so. NothingToGrade and
# WorkspaceNotFound are such errors.
CANNOT_BE_CHECKED = OSError
_OF_A_RATING = {"easy": 1.0, "good": 1.0, "hard": 0.5, "again": 0.0}

Scored = tuple[float, list[str]]
"""Arguments of `Interview.take`: a score from 0 to 1, and the missing points as text."""


def planned(plan: Plan) -> str:
    """Write `6 questions, 3 drills, 1 exercise`; with their minutes if these are fewer than asked,
    and what there is none of without torch."""
    counts = Counter(item.kind for item in plan.items)
    items = ", ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in counts.items())
    if plan.planned_minutes != plan.minutes:
        items += f": {plan.planned_minutes} of the {plan.minutes} minutes"
    if plan.minutes >= WITH_EXERCISE and not can_run():
        items += ". No exercise and no case: these are real runs, which need torch"
    return items


def announced(interview: Interview, item: Item) -> str:
    """Write `2 of 10: a drill, about 2 minutes.`"""
    place = f"{len(interview.taken) + 1} of {len(interview.plan.items)}"
    article = "an" if item.kind == EXERCISE else "a"
    return f"{place}: {article} {item.kind}, about {item.minutes} minutes."


def minutes_text(minutes: float) -> str:
    """`10 minutes`, to the nearest one."""
    whole = max(round(minutes), 0)
    return f"{whole} minute{'' if whole == 1 else 's'}"


def asked_drill(item: Item, seed: int) -> Asked:
    """Return the question of a drill or a case, the same for the same seed."""
    return Round([kind_of(item)], seed).ask()


def scored_questions(answered: Iterable[tuple[Card, Collection[int]]]) -> Scored:
    """Score a question and its follow-up, each with the numbers of the points said, from 1."""
    missed, num_points = [], 0
    for card, said in answered:
        of = " (follow-up)" if "/" in card.id else ""
        missed += [point + of for point in points_missed(card, said)]
        num_points += len(card.rubric)
    return 1 - len(missed) / num_points, missed


def scored_drill(asked: Asked) -> Scored:
    """Score a drill that is over, or given up, and store its rating, once."""
    return _OF_A_RATING[asked.finish()], asked.traps


def scored_design(round_: DesignRound) -> Scored:
    """Score a design round, and store it; missed: its parts below one half."""
    return round_.finish(), [name for name, score in round_.scores.items() if score < 0.5]


def scored_exercise(*, passed: bool) -> Scored:
    """Score an exercise; one that is given up is not passed."""
    return (1.0, []) if passed else (0.0, [SKIPPED])


class GivenExercise:
    """An exercise of an interview, made when it is shown: has its code changed since?"""

    def __init__(self, name: str) -> None:
        """Raises UnknownExercise and WorkspaceNotFound."""
        self.name = name
        self._num_resets = self._count_resets()
        self._before = _code_of(name)
        """None: a stub, or nothing that can be read."""

    @property
    def notice(self) -> str:
        """Note for the learner before the start; "" if there is none."""
        if self._before is None:
            return ""
        if has_passed(self.name):
            return f"`labkit reset {self.name}` first: it is solved already."
        return (
            f"exercises/{self.name}.py has code in it from before, which does not count as it is. "
            f"`labkit reset {self.name}` puts the stub back, and keeps what you had."
        )

    @property
    def refusal(self) -> str:
        """Message for a solution that passes but is not new."""
        return (
            "It passes, and was in the file before it was asked for: this does not count. "
            f"`labkit reset {self.name}`, write it again, and check; or skip it."
        )

    def is_new(self) -> bool:
        """Return whether the code changed, apart from comments, or was reset since the question."""
        if self._before is None or self._count_resets() > self._num_resets:
            return True
        return _code_of(self.name) != self._before

    def _count_resets(self) -> int:
        return len(progress.events(self.name, "reset"))


def _code_of(name: str) -> str | None:
    """Return the learner's code without comments and spacing; None for a stub or a missing file."""
    from labkit.grade.grader import functions_of  # it takes torch with it
    from labkit.grade.submission import NothingToGrade, Submission

    workspace = find_workspace()
    try:
        found = Submission.read(None, name, functions_of(name), workspace)
    except NothingToGrade:
        return None
    finding = found.finding_before_running()
    if finding is not None and finding.outcome is Outcome.NOT_ATTEMPTED:
        return None
    text = found.code.source
    return text if finding is not None else ast.dump(ast.parse(text))
