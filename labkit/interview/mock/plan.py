"""The plan of an interview: its items in order, for these minutes, level and seed.

    story      5 minutes, in an interview of 60 or more, first: how one trains a large model
    question   4 minutes: said aloud, and a follow-up
    drill      2 minutes
    case       8 minutes, in an interview of 60 or more: which fault does this run have?
    exercise  15 minutes, in an interview of 30 or more: talk while you code; then its follow-ups
    design    45 minutes, in an interview of 120 or more; last

There are two questions for each drill. No group of topics is repeated before every other group with
items of the level has had a question or a drill; the exercise is drawn separately. If no group in
turn has an item of the next kind, or there is no time for one, an item of the other kind comes.
Within a group the choice is random.

An exercise that was passed is drawn only if all of the level were. None is drawn outside a folder
of the course, because there are no files to write it in. Without torch there is no exercise and no
case: both are real runs.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from labkit import arguments
from labkit.grade.catalog import load_catalog, load_subjects
from labkit.grade.hints import is_passed, standings
from labkit.grade.workspace import find_workspace
from labkit.interview import design
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.cards.sitting import STORY_CARD
from labkit.interview.case_files import CASES
from labkit.interview.drills import DRILLS
from labkit.interview.drills.drill import Kind
from labkit.interview.evidence import can_run

STORY, QUESTION, DRILL, CASE = "story", "question", "drill", "case"
EXERCISE, DESIGN = "exercise", "design"
MINUTES = {STORY: 5, QUESTION: 4, DRILL: 2, CASE: 8, EXERCISE: 15, DESIGN: design.MINUTES}
_QUESTIONS_FOR_A_DRILL = 2
WITH_EXERCISE, _WITH_CASE, _WITH_DESIGN = 30, 60, 120
SHORTEST, LONGEST = 6, 240

LEVELS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "junior": ((1,), (1, 2)),
    "senior": ((1, 2), (2, 3)),
    "expert": ((2, 3), (3, 4, 5)),
}
"""Difficulties of (cards and drills, exercises). Cases have those of exercises."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of an interview."""

    kind: str
    """A key of MINUTES."""
    name: str
    """A card's id, or the name of the other kinds."""
    group: str
    """The title of its group of topics."""

    @property
    def minutes(self) -> int:
        """Minutes that are meant for it."""
        return MINUTES[self.kind]


def kind_of(item: Item) -> Kind:
    """Return the kind of drill or case that an item asks."""
    return CASES[item.name] if item.kind == CASE else DRILLS[item.name]


@dataclass(frozen=True)
class Plan:
    """An interview before it begins."""

    minutes: int
    """Minutes that were asked for, and that the clock shows."""
    level: str
    seed: int
    items: tuple[Item, ...]

    @property
    def planned_minutes(self) -> int:
        """Minutes meant for the items; fewer than `minutes` if the level has no more items."""
        return sum(item.minutes for item in self.items)


def plan_interview(minutes: int = 45, level: str = "senior", seed: int | None = None) -> Plan:
    """Plan an interview of this length.

    seed: the same one gives the same plan, except for an exercise that was passed since; None:
    another plan.

    Raises ValueError for an unknown level and for fewer than 6 or more than 240 minutes;
    TypeError unless minutes and seed are whole numbers.
    """
    allowed = f"{SHORTEST} to {LONGEST} minutes"
    minutes = arguments.whole("minutes", minutes, allowed, least=SHORTEST, most=LONGEST)
    if level not in LEVELS:
        raise ValueError(f"level={level!r}: give one of {', '.join(LEVELS)}")
    if seed is not None:
        seed = arguments.whole("seed", seed, "the same asks the same", least=-math.inf)
    else:
        seed = random.randrange(10**6)
    rng = random.Random(f"mock {seed}")
    of_questions, of_exercises = LEVELS[level]
    has_case = minutes >= _WITH_CASE and can_run()
    has_exercise = minutes >= WITH_EXERCISE and can_run() and find_workspace().has_learners_files
    exercises = [_exercise(rng, of_exercises)] if has_exercise else []
    long = ([_case(rng, of_exercises)] if has_case else []) + exercises
    telling = load_topics()[STORY_CARD].group
    if minutes >= _WITH_DESIGN:
        long.append(Item(DESIGN, rng.choice(design.names()), telling))
    first = [Item(STORY, STORY_CARD, telling)] if minutes >= _WITH_CASE else []
    left = minutes - sum(each.minutes for each in (*first, *long))
    return Plan(minutes, level, seed, (*first, *_short_items(rng, of_questions, left), *long))


def _short_items(rng: random.Random, difficulties: Sequence[int], left: int) -> list[Item]:
    """Return questions and drills for this many minutes, or all of them."""
    turns = _Turns(rng, [*_cards(difficulties), *_drills(difficulties)])
    items: list[Item] = []
    while True:
        kinds = [each.kind for each in items]
        is_drill_next = kinds.count(QUESTION) >= _QUESTIONS_FOR_A_DRILL * (kinds.count(DRILL) + 1)
        wanted = (DRILL, QUESTION) if is_drill_next else (QUESTION, DRILL)
        item = turns.draw([kind for kind in wanted if MINUTES[kind] <= left])
        if item is None:
            return items
        items.append(item)
        left -= item.minutes


def _cards(difficulties: Sequence[int]) -> list[Item]:
    topics = load_topics()
    return [
        Item(QUESTION, card.id, topics[card.topic].group)
        for card in load_bank().values()
        if card.difficulty in difficulties and card.id != STORY_CARD
    ]


def _drills(difficulties: Sequence[int]) -> list[Item]:
    topics = load_topics()
    return [
        Item(DRILL, drill.name, topics[drill.topic].group)
        for drill in DRILLS.values()
        if drill.difficulty in difficulties
    ]


def _case(rng: random.Random, difficulties: Sequence[int]) -> Item:
    found = rng.choice([each for each in CASES.values() if each.difficulty in difficulties])
    return Item(CASE, found.name, load_topics()[found.topic].group)


def _exercise(rng: random.Random, difficulties: Sequence[int]) -> Item:
    found = [each for each in load_catalog().values() if each.difficulty in difficulties]
    shuffled = rng.sample(
        found, len(found)
    )  # before the standings, which change while the seed stays
    known = standings()
    is_open = [each for each in shuffled if not is_passed(known[each.name])]
    drawn = [*is_open, *shuffled][0]
    return Item(EXERCISE, drawn.name, load_subjects()[drawn.subject].title)


class _Turns:
    """One random order of groups for all kinds, each once before any is repeated."""

    def __init__(self, rng: random.Random, items: Sequence[Item]) -> None:
        self._rng = rng
        self._left: dict[str, list[Item]] = {}
        for item in rng.sample(items, len(items)):
            self._left.setdefault(item.group, []).append(item)
        self._round: list[str] = []
        """Groups that have not had their turn."""

    def draw(self, kinds: Sequence[str]) -> Item | None:
        """Draw an item of the first of these kinds that a group in turn has; None: no group has
        any."""
        if not self._round:
            waiting = sorted(group for group, items in self._left.items() if items)
            self._round = self._rng.sample(waiting, len(waiting))
        for kind in kinds:
            for group in self._round:
                found = next((each for each in self._left[group] if each.kind == kind), None)
                if found is not None:
                    self._round.remove(group)
                    self._left[group].remove(found)
                    return found
        return None
