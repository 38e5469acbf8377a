"""What a terminal and a notebook share in asking: how an item is announced, and what it scores.

question   the share of the rubric's points that were said; missed: the others
drill      1 at the first try, 1/2 at the second, else 0; missed: the traps walked into
case       the same
exercise   1 after a pass, 0 when it is given up
"""

from collections import Counter
from collections.abc import Collection

from labkit.grade.submission import NothingToGrade
from labkit.grade.workspace import WorkspaceNotFound
from labkit.interview.cards import Card
from labkit.interview.drills.drill_session import Asked, Round
from labkit.interview.mock.interview import Interview
from labkit.interview.mock.plan import EXERCISE, Item, Plan, kind_of

SKIPPED = "skipped"
# A file that is missing or no Python: the interview goes on, and says so.
CANNOT_BE_CHECKED = (NothingToGrade, WorkspaceNotFound, OSError)
_OF_A_RATING = {"easy": 1.0, "good": 1.0, "hard": 0.5, "again": 0.0}

Scored = tuple[float, list[str]]
"""A score from 0 to 1, and what was missed, in words: as `Interview.take` wants them."""


def planned(plan: Plan) -> str:
    """`6 questions, 3 drills, 1 exercise`; with their minutes, where these are fewer than asked."""
    counts = Counter(item.kind for item in plan.items)
    items = ", ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in counts.items())
    if plan.planned_minutes == plan.minutes:
        return items
    return f"{items}: {plan.planned_minutes} of the {plan.minutes} minutes"


def announced(interview: Interview, item: Item) -> str:
    """`2 of 10: a drill, about 2 minutes.`"""
    place = f"{len(interview.taken) + 1} of {len(interview.plan.items)}"
    article = "an" if item.kind == EXERCISE else "a"
    return f"{place}: {article} {item.kind}, about {item.minutes} minutes."


def minutes_text(minutes: float) -> str:
    """`10 minutes`, to the nearest one."""
    whole = max(round(minutes), 0)
    return f"{whole} minute{'' if whole == 1 else 's'}"


def asked_drill(item: Item, seed: int) -> Asked:
    """The question of a drill or a case, the same for the same seed."""
    return Round([kind_of(item)], seed).ask()


def scored_question(card: Card, said: Collection[int]) -> Scored:
    """said: the numbers of the rubric's points, from 1."""
    missed = [point for place, point in enumerate(card.rubric, 1) if place not in said]
    return 1 - len(missed) / len(card.rubric), missed


def scored_drill(asked: Asked) -> Scored:
    """Once it is over, or given up. Remembers its rating, once."""
    return _OF_A_RATING[asked.finish()], asked.traps


def scored_exercise(*, passed: bool) -> Scored:
    """Given up is not passed."""
    return (1.0, []) if passed else (0.0, [SKIPPED])
