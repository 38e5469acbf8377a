"""What an interview asks, and in which order: everything follows from minutes, level and a seed.

    question   4 minutes: said aloud, and a follow-up
    drill      2 minutes
    exercise  15 minutes, in an interview of 30 or more; last, as it is in life

Two questions for a drill. No group of topics comes twice before every other has come once, of those
that the level has something in; within a group what is drawn is random.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit import arguments
from labkit.grade.catalog import load_catalog
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.drills import DRILLS
from labkit.interview.subjects import group_of_exercise

QUESTION, DRILL, EXERCISE = "question", "drill", "exercise"
MINUTES = {QUESTION: 4, DRILL: 2, EXERCISE: 15}
_PATTERN = (QUESTION, QUESTION, DRILL)
_WITH_EXERCISE = 30
SHORTEST, LONGEST = 6, 240

LEVELS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "junior": ((1,), (1, 2)),
    "senior": ((1, 2), (2, 3)),
    "expert": ((2, 3), (3, 4, 5)),
}
"""Difficulties of (cards and drills, exercises)."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that is asked."""

    kind: str
    """question, drill or exercise."""
    name: str
    """A card's id, a drill's or an exercise's name."""
    group: str
    """The title of its group of topics."""

    @property
    def minutes(self) -> int:
        """That are meant for it."""
        return MINUTES[self.kind]


@dataclass(frozen=True)
class Plan:
    """An interview before it begins."""

    minutes: int
    level: str
    seed: int
    items: tuple[Item, ...]


def plan_interview(minutes: int = 45, level: str = "senior", seed: int | None = None) -> Plan:
    """An interview of so many minutes. seed: the same one gives the same plan; None: another.

    Raises ValueError for a level that is none and for fewer than 6 or more than 240 minutes.
    """
    allowed = f"{SHORTEST} to {LONGEST} minutes"
    minutes = arguments.whole("minutes", minutes, allowed, least=SHORTEST, most=LONGEST)
    if level not in LEVELS:
        raise ValueError(f"level={level!r}: give one of {', '.join(LEVELS)}")
    seed = random.randrange(10**6) if seed is None else seed
    rng = random.Random(f"mock {seed}")
    of_questions, of_exercises = LEVELS[level]
    exercise = _exercise(rng, of_exercises) if minutes >= _WITH_EXERCISE else None
    left = minutes - (exercise.minutes if exercise else 0)
    draws = {QUESTION: _cards(rng, of_questions), DRILL: _drills(rng, of_questions)}
    items: list[Item] = []
    place = 0
    while (kind := _PATTERN[place % len(_PATTERN)]) and MINUTES[kind] <= left:
        item = next(draws[kind], None)
        if item is None:
            break
        items.append(item)
        left -= item.minutes
        place += 1
    return Plan(minutes, level, seed, (*items, *([exercise] if exercise else [])))


def _cards(rng: random.Random, difficulties: Sequence[int]) -> Iterator[Item]:
    topics = load_topics()
    return _in_turn(
        rng,
        [
            Item(QUESTION, card.id, topics[card.topic].group)
            for card in load_bank().values()
            if card.difficulty in difficulties
        ],
    )


def _drills(rng: random.Random, difficulties: Sequence[int]) -> Iterator[Item]:
    topics = load_topics()
    return _in_turn(
        rng,
        [
            Item(DRILL, drill.name, topics[drill.topic].group)
            for drill in DRILLS.values()
            if drill.difficulty in difficulties
        ],
    )


def _exercise(rng: random.Random, difficulties: Sequence[int]) -> Item:
    found = [
        Item(EXERCISE, each.name, group_of_exercise(each))
        for each in load_catalog().values()
        if each.difficulty in difficulties
    ]
    return rng.choice(found)


def _in_turn(rng: random.Random, items: Sequence[Item]) -> Iterator[Item]:
    """Group by group, each once before any comes again; at random within it."""
    by_group: dict[str, list[Item]] = {}
    for item in items:
        by_group.setdefault(item.group, []).append(item)
    waiting = {group: rng.sample(each, len(each)) for group, each in by_group.items()}
    while waiting:
        for group in rng.sample(sorted(waiting), len(waiting)):
            yield waiting[group].pop()
            if not waiting[group]:
                del waiting[group]
