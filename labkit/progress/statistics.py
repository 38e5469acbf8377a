"""Statistics of a learner: days in a row, what is due, mastery by topic, exercises.

Mastery of a topic is the mean chance of recall, now, of all its subjects. A subject that was never
answered counts 0: a topic of ten cards of which one is known well is known to a tenth. A subject
that is not learnt yet counts 0 too, such as one just answered wrongly, whose chance of recall is
nearly 1 minutes after the answer was shown. Without new answers mastery falls from day to day, as
memory does.

`usable` leaves out events whose details have another form than labkit writes, because an edited
file may hold anything, and some of it is shown in a terminal. Fields that are not listed here are
ignored.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from labkit.progress import clock, practice, scheduling
from labkit.progress.clock import warn
from labkit.progress.event import Event
from labkit.progress.scheduling import State

# Real practice, not reading a hint or restoring a stub.
_DOING = ("answer", "check", "prediction", "puzzle", "vote")


@dataclass(frozen=True, slots=True)
class Mastery:
    """Mastery of a topic."""

    value: float
    """0 to 1; 0 for a topic without subjects."""
    num_seen: int
    """Subjects that were answered at least once."""
    num_due: int
    num_subjects: int


@dataclass(frozen=True, slots=True)
class ExerciseRow:
    """A learner's work on one exercise."""

    name: str
    num_tries: int
    """Number of checked attempts; an unchanged stub is not one."""
    num_hints: int
    """Number of different hints, 0 to 3."""
    solution_shown: bool
    """True if it was shown before the first pass; afterwards it is there to compare."""
    passed_s: float | None
    """Time of the first pass, in seconds since 1970; None if there was none."""
    last_s: float | None = None
    """Time of the last check, a check of the unchanged stub included."""

    @property
    def is_started(self) -> bool:
        """Return whether anything was tried or read; a check of the unchanged stub is not
        enough."""
        return bool(self.num_tries or self.num_hints or self.solution_shown or self.passed_s)


def streak(now_s: float | None = None, events: Iterable[Event] | None = None) -> int:
    """Count days in a row on which something was done, up to today.

    Days are those of the learner's own calendar. Today is not over yet: without an answer today,
    the days up to yesterday count. `events`: those of the store, if left out.
    """
    days = set(_per_day(practice.events() if events is None else events, _DOING))
    day = clock.day_of(clock.now_s() if now_s is None else now_s)
    if day not in days:
        day -= timedelta(days=1)
    length = 0
    while day in days:
        length, day = length + 1, day - timedelta(days=1)
    return length


def answers_per_day(
    num_days: int = 30, now_s: float | None = None, events: Iterable[Event] | None = None
) -> dict[date, int]:
    """Count answers on each of the last days, today last; 0 where there was none."""
    counts = _per_day(practice.events(kind="answer") if events is None else events, ("answer",))
    today = clock.day_of(clock.now_s() if now_s is None else now_s)
    days = [today - timedelta(days=back) for back in reversed(range(num_days))]
    return {day: counts[day] for day in days}


def due_counts(
    now_s: float | None = None, states: Mapping[str, State] | None = None
) -> dict[str, int]:
    """Count the due subjects of each kind: `{"card": 3, "drill": 0, ...}`."""
    now_s = clock.now_s() if now_s is None else now_s
    states = practice.all_states() if states is None else states
    ready = [state.subject for state in states.values() if state.due_s <= now_s]
    due = Counter(subject.partition("/")[0] for subject in ready)
    return {kind: due[kind] for kind in scheduling.PRACTISED}


def due_per_day(
    num_days: int = 7, now_s: float | None = None, states: Mapping[str, State] | None = None
) -> dict[date, int]:
    """Count subjects that come due on each of the next days; overdue ones count for today."""
    today = clock.day_of(clock.now_s() if now_s is None else now_s)
    states = practice.all_states() if states is None else states
    counts = Counter(max(today, clock.day_of(state.due_s)) for state in states.values())
    days = [today + timedelta(days=ahead) for ahead in range(num_days)]
    return {day: counts[day] for day in days}


def mastery(
    topics: Mapping[str, Iterable[str]],
    now_s: float | None = None,
    states: Mapping[str, State] | None = None,
) -> dict[str, Mastery]:
    """Return the mastery of each topic. topics: the subjects of each, such as "card/co-8".

    states: of the store, if left out, as everywhere here. Needs the package fsrs (ImportError) as
    soon as anything was answered.
    """
    now_s = clock.now_s() if now_s is None else now_s
    states = practice.all_states() if states is None else states
    found = {}
    for topic, subjects in topics.items():
        names = set(subjects)
        seen = [states[name] for name in sorted(names) if name in states]
        learnt = [state for state in seen if scheduling.is_learnt(state)]
        total = sum(scheduling.retrievability(state, now_s) for state in learnt)
        num_due = sum(state.due_s <= now_s for state in seen)
        found[topic] = Mastery(total / len(names) if names else 0.0, len(seen), num_due, len(names))
    return found


def exercise_table(
    names: Iterable[str], events: Iterable[Event] | None = None
) -> list[ExerciseRow]:
    """Return a row per exercise, in the order of `names`; also for those never tried."""
    by_subject: dict[str, list[Event]] = {}
    for event in practice.events() if events is None else events:
        by_subject.setdefault(event.subject, []).append(event)
    return [_row(name, by_subject.get(name, [])) for name in names]


def _row(name: str, events: list[Event]) -> ExerciseRow:
    checks = [event for event in events if event.kind == "check"]
    passes = [event.at_s for event in checks if event.detail.get("outcome") == "passed"]
    passed_s = min(passes, default=None)
    hints = {event.detail.get("number") for event in events if event.kind == "hint"}
    shown = [event.at_s for event in events if event.kind == "solution"]
    return ExerciseRow(
        name=name,
        num_tries=sum(event.detail.get("outcome") != "not attempted" for event in checks),
        num_hints=len(hints),
        solution_shown=any(passed_s is None or at_s < passed_s for at_s in shown),
        passed_s=passed_s,
        last_s=max((event.at_s for event in checks), default=None),
    )


def _per_day(events: Iterable[Event], kinds: tuple[str, ...]) -> Counter[date]:
    return Counter(
        clock.day_of(event.at_s)
        for event in events
        if event.kind in kinds and event.detail.get("outcome") != "not attempted"
    )


# kind -> fields with their types; those of _OPTIONAL may be missing, or null.
_NEEDED: dict[str, dict[str, type]] = {
    "mock": {"minutes": int, "score": float},
    "prediction": {"text": str, "value": float, "dimension": str},
}
_OPTIONAL: dict[str, dict[str, type]] = {
    "check": {"outcome": str, "diagnosis": str, "where": list},
    "puzzle": {"outcome": str, "diagnosis": str},
    "hint": {"number": int},
    "vote": {"verdict": str},
    scheduling.ANSWER: {"scheduler": str, "outcome": str},
}
_WITH_OUTCOME = [kind for kind, fields in _OPTIONAL.items() if "outcome" in fields]
# As in grade/verdict.py: how a check or a puzzle can end.
OUTCOMES = ("not attempted", "wrong", "over budget", "crashed", "hung", "passed")


def require(event: Event) -> None:
    """Raise ValueError, naming field and value, if a detail has another form."""
    for field, wanted in _NEEDED.get(event.kind, {}).items():
        _require_type(event, field, wanted)
    for field, wanted in _OPTIONAL.get(event.kind, {}).items():
        if event.detail.get(field) is not None:
            _require_type(event, field, wanted)
    outcome = event.detail.get("outcome")
    if event.kind in _WITH_OUTCOME and outcome is not None and outcome not in OUTCOMES:
        raise ValueError(
            f"{event.kind}'s outcome is {outcome!r:.40}; it is one of {', '.join(OUTCOMES)}"
        )
    if event.kind == scheduling.ANSWER:
        practice.check_subject(event.subject)
        practice.check_rating(event.detail.get("rating", ""))
    if event.kind == "mock" and not 0 <= event.detail["score"] <= 1:  # not a number is neither
        raise ValueError(f"score is {event.detail['score']!r:.40}; it is a share, from 0 to 1")


def usable(events: Iterable[Event]) -> list[Event]:
    """Return the events with valid details, and warn about each other one."""
    found = []
    for event in events:
        try:
            require(event)
        except ValueError as error:
            warn(f"event {event.uid} ({event.kind} {event.subject}) is left out: {error}")
        else:
            found.append(event)
    return found


def _require_type(event: Event, field: str, wanted: type) -> None:
    value: Any = event.detail.get(field)
    fits = isinstance(value, (int, float) if wanted is float else wanted)
    if not fits or isinstance(value, bool):
        raise ValueError(f"{event.kind}'s {field} is {value!r:.40}, and no {wanted.__name__}")
