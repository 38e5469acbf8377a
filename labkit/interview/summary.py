"""A learner's standing in cards, drills, exercises, claims and predictions.

standing()                        from the stored events, now
standing_of(events, now_s)        from any events, as if `now_s` were now

The terminal and the notebook show the same Standing.

subjects_by_group()["Pipeline parallelism"]    ["card/pp-1", ..., "drill/...", "exercise/..."]

The group of a card or a drill is that of its topic, the group of a claim that of its first topic.
An exercise belongs to the subject of its folder. Predictions belong to notebooks and have no group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from labkit import progress
from labkit.grade.catalog import load_catalog, load_subjects
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.cards.sitting import subject
from labkit.interview.court import load_claims
from labkit.interview.drills import DRILLS
from labkit.progress import clock, practice, scheduling, statistics
from labkit.progress.event import Event
from labkit.progress.scheduling import State
from labkit.progress.statistics import ExerciseRow, Mastery


def subjects_by_group() -> dict[str, list[str]]:
    """Return the subjects of practice by group of topics, in the order of the course."""
    topics, subjects = load_topics(), load_subjects()
    found: dict[str, list[str]] = {topic.group: [] for topic in topics.values()}
    for card in load_bank().values():
        found[topics[card.topic].group].append(subject(card))
    for drill in DRILLS.values():
        found[topics[drill.topic].group].append(f"drill/{drill.name}")
    for claim in load_claims().values():
        found[topics[claim.topics[0]].group].append(f"claim/{claim.key}")
    for exercise in load_catalog().values():
        found[subjects[exercise.subject].title].append(f"exercise/{exercise.name}")
    return found


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of judged answers and of right ones."""

    num_judged: int
    num_right: int
    num_at_once: int = 0
    """Answers that were right at the first of two tries; for drills."""


@dataclass(frozen=True)
class Standing:
    """A learner's standing at one moment."""

    now_s: float
    num_events: int
    streak: int
    """Days of practice in a row."""
    due: dict[str, int]
    """Number of due subjects by kind: card, drill, exercise, prediction."""
    due_days: dict[date, int]
    """Due subjects of today and the next days; overdue ones count for today."""
    topics: dict[str, Mastery]
    """Mastery by group of topics, in the bank's order; empty without fsrs."""
    exercises: list[ExerciseRow]
    drills: dict[str, Tally]
    """Answered drills by group of topics, without groups that have none."""
    predictions: Tally
    votes: Tally
    """Votes on claims; a right one agrees with the court."""
    interviews: list[Event]
    """Mock interviews, the latest first; `detail` has minutes, seed, score and by_group."""

    @property
    def is_new(self) -> bool:
        """True if there are no events yet."""
        return self.num_events == 0

    @property
    def weakest_first(self) -> list[str]:
        """Groups of topics by mastery; equal ones in the bank's order."""
        return sorted(self.topics, key=lambda group: self.topics[group].value)

    @property
    def next_topic(self) -> str | None:
        """The weakest group with something due; if there is none, the weakest of all."""
        groups = self.weakest_first
        with_due = [each for each in groups if self.topics[each].num_due]
        return next(iter(with_due or groups), None)


def standing() -> Standing:
    """Return the learner's standing now, from the stored events.

    A store that cannot be read gives a ProgressWarning and counts as empty. An event with invalid
    numbers gives a warning too, and is left out. Without fsrs mastery and due times are missing.
    """
    known = practice.all_states() if scheduling.is_installed() else {}
    return _standing(statistics.usable(progress.events()), known, clock.now_s())


def standing_of(events: Sequence[Event], now_s: float) -> Standing:
    """Return the standing that follows from these events; due times are computed from them, too."""
    found = statistics.usable(events)
    known = scheduling.rebuilt(found) if scheduling.is_installed() else {}
    return _standing(found, known, now_s)


def _standing(events: Sequence[Event], known: dict[str, State], now_s: float) -> Standing:
    topics = subjects_by_group()
    asked = {subject for subjects in topics.values() for subject in subjects}
    known = {  # an older labkit may have asked other subjects, which would stay due for ever
        subject: state
        for subject, state in known.items()
        if subject in asked or subject.startswith("prediction/")
    }
    return Standing(
        now_s=now_s,
        num_events=sum(event.kind != scheduling.SCHEDULER for event in events),
        streak=statistics.streak(now_s, events),
        due=statistics.due_counts(now_s, known),
        due_days=statistics.due_per_day(7, now_s, known),
        topics=statistics.mastery(topics, now_s, known) if scheduling.is_installed() else {},
        exercises=statistics.exercise_table(load_catalog(), events),
        drills=_drills(events),
        predictions=_tally(_rated(events, "prediction")),
        votes=_votes(events),
        interviews=[event for event in reversed(events) if event.kind == "mock"],
    )


def notebooks_of(group: str) -> list[str]:
    """Return the file names of the notebooks on a group of topics, in the bank's order."""
    found = [topic.notebook for topic in load_topics().values() if topic.group == group]
    return list(dict.fromkeys(name for name in found if name))


def _drills(events: Iterable[Event]) -> dict[str, Tally]:
    topics = load_topics()
    ratings: dict[str, list[str]] = {}
    for name, rating in _rated(events, "drill"):
        if name in DRILLS:  # an older labkit may have had other topics
            ratings.setdefault(topics[DRILLS[name].topic].group, []).append(rating)
    order = dict.fromkeys(topic.group for topic in topics.values())
    return {group: _tally((group, each) for each in ratings[group])
            for group in order if group in ratings}  # fmt: skip


def _rated(events: Iterable[Event], kind: str) -> list[tuple[str, str]]:
    """Return (name, rating) of each answer of this kind."""
    return [
        (event.subject.partition("/")[2], event.detail["rating"])
        for event in events
        if event.kind == scheduling.ANSWER and event.subject.startswith(f"{kind}/")
    ]


def _tally(rated: Iterable[tuple[str, str]]) -> Tally:
    ratings = [rating for _, rating in rated]
    return Tally(
        num_judged=len(ratings),
        num_right=sum(rating != "again" for rating in ratings),
        num_at_once=sum(rating in ("good", "easy") for rating in ratings),
    )


def _votes(events: Iterable[Event]) -> Tally:
    """Count the votes, only the latest on each claim."""
    claims = load_claims()
    latest = {
        event.subject: event.detail.get("verdict")
        for event in events
        if event.kind == "vote" and event.subject in claims
    }
    right = sum(verdict == claims[key].verdict for key, verdict in latest.items())
    return Tally(len(latest), right, right)
