"""Spaced repetition by FSRS, from the package `fsrs`, imported only here and when needed.

FSRS models a memory by its stability S (after S days the chance of recall is down to 90 %) and its
difficulty (1 to 10). A rating changes both, and the next question is due when the chance of recall
has fallen to the desired one. Method: Ye, Su and Cao, "A Stochastic Shortest Path Algorithm for
Optimizing Spaced Repetition Scheduling", KDD 2022; the package computes its sixth version.

A state is a function of the set of a subject's answers, in the order of their times, and at equal
times of their uids. So two machines that exchange their events agree, and states rebuilt
from the events equal the stored ones, to the last digit.

All inputs of a state are stored: each answer with its time, its rating and the name of
the settings it was scheduled with, and these settings themselves. The package's random spread of
intervals is off, because it could not be computed again from events.
"""

import functools
import hashlib
import importlib.metadata
import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from labkit.progress.event import Event, insert, select

if TYPE_CHECKING:
    import fsrs


RATINGS = ("again", "hard", "good", "easy")
# Kinds of practice: the part of a subject's name before the first "/".
PRACTISED = ("card", "drill", "case", "exercise", "prediction", "claim")
DESIRED_RETENTION = 0.9
_REVIEW = 2  # see State.phase
LONGEST_DAYS = 365  # people who prepare for an interview want to see everything once a year
# After "again" a card is repeated in the same sitting. An exercise takes half an hour, and a second
# prediction or vote on the same day shows nothing: these wait for another day.
_STEPS_S = {
    "card": (600,), "drill": (600,), "case": (), "exercise": (), "prediction": (), "claim": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class State:
    """The memory of one subject, after its latest answer."""

    subject: str
    num_answers: int
    last_uid: str
    """Id of the latest answer."""
    last_s: float
    """Time of the latest answer, in seconds since 1970, like `due_s`."""
    due_s: float
    stability: float
    """Days until the chance of recall is down to 90 %."""
    difficulty: float
    """1 to 10."""
    phase: int
    """1: learning, 2: review, 3: relearning."""
    step: int | None
    """Step of learning or relearning; None in review."""


def is_installed() -> bool:
    """Return whether the package is there. Without it, answers are stored and scheduled later."""
    try:
        import fsrs  # noqa: F401
    except ImportError:
        return False
    return True


def settings_for(subject: str) -> dict[str, Any]:
    """Return a subject's settings of today, as JSON holds them. See `name_of`."""
    return _settings(subject.partition("/")[0])


def name_of(settings: dict[str, Any]) -> str:
    """Return a name computed from the settings, the same on every machine."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def scheduler_from(settings: dict[str, Any]) -> "fsrs.Scheduler":
    """Return the scheduler of stored settings. ValueError if these are not FSRS's."""
    import fsrs

    try:
        return fsrs.Scheduler.from_dict(settings)  # type: ignore[arg-type]
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"no settings of FSRS: {error!r}") from error


def after(state: State | None, answer: Event, scheduler: "fsrs.Scheduler") -> State:
    """Return the state after one more answer; `state` None before a subject's first."""
    import fsrs

    rating = fsrs.Rating(RATINGS.index(answer.detail["rating"]) + 1)
    card, _ = scheduler.review_card(_card(state), rating, _utc(answer.at_s))
    assert card.stability is not None and card.difficulty is not None
    return State(
        subject=answer.subject,
        num_answers=1 if state is None else state.num_answers + 1,
        last_uid=answer.uid,
        last_s=answer.at_s,
        due_s=card.due.timestamp(),
        stability=card.stability,
        difficulty=card.difficulty,
        phase=card.state.value,
        step=card.step,
    )


def retrievability(state: State, at_s: float) -> float:
    """Return the chance of recall at that time, 0 to 1, by whole days since the last answer."""
    scheduler = scheduler_from(settings_for(state.subject))
    return float(scheduler.get_card_retrievability(_card(state), _utc(at_s)))


def is_learnt(state: State) -> bool:
    """Return whether it is past its first steps, and likely enough to be recalled tomorrow."""
    return state.phase == _REVIEW and state.stability >= 1


@functools.cache
def _settings(practised: str) -> dict[str, Any]:
    import fsrs

    steps = [timedelta(seconds=step_s) for step_s in _STEPS_S[practised]]
    scheduler = fsrs.Scheduler(
        desired_retention=DESIRED_RETENTION,
        learning_steps=steps,
        relearning_steps=steps,
        maximum_interval=LONGEST_DAYS,
        enable_fuzzing=False,
    )
    return {**scheduler.to_dict(), "package": f"fsrs {importlib.metadata.version('fsrs')}"}


def _card(state: State | None) -> "fsrs.Card":
    import fsrs

    if state is None:
        return fsrs.Card(card_id=0)  # without an id of its own, it waits to draw one
    return fsrs.Card(
        card_id=0,
        state=fsrs.State(state.phase),
        step=state.step,
        stability=state.stability,
        difficulty=state.difficulty,
        due=_utc(state.due_s),
        last_review=_utc(state.last_s),
    )


def _utc(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


ANSWER, SCHEDULER = "answer", "scheduler"

# The name of stored settings (None: an answer from before fsrs was installed), and the subject.
SchedulerNamed = Callable[[str | None, str], "fsrs.Scheduler"]
_COLUMNS = "subject, num_answers, last_uid, last_s, due_s, stability, difficulty, phase, step"


def add_answer(opened: sqlite3.Connection, answer: Event) -> State | None:
    """Store an answer and the state after it, within a transaction. None: fsrs is missing.

    answer: its detail holds "rating"; the name of the settings in force is added to it.
    """
    name = _settings_in_force(opened, answer) if is_installed() else None
    answer = replace(answer, kind=ANSWER, detail={**answer.detail, "scheduler": name})
    answer = replace(answer, uid=insert(opened, answer))
    earlier = load(opened, answer.subject)
    if earlier is None or name is None or not _follows(opened, answer, earlier):
        return refresh(opened, answer.subject)
    state = after(earlier, answer, _stored_schedulers(opened)(name, answer.subject))
    _save(opened, state)
    return state


def refresh(opened: sqlite3.Connection, subject: str) -> State | None:
    """Compute a subject's state again from its answers, and store it, within a transaction."""
    if not is_installed():
        return None  # the old state stays, and its number of answers shows that it is old
    state = replay(select(opened, subject, ANSWER), _stored_schedulers(opened))
    if state is not None:
        _save(opened, state)
    return state


def replay(answers: Iterable[Event], scheduler_named: SchedulerNamed) -> State | None:
    """Return the state after all answers of one subject, in any order; None after none."""
    state = None
    for answer in sorted(answers, key=lambda event: (event.at_s, event.uid)):
        scheduler = scheduler_named(answer.detail.get("scheduler"), answer.subject)
        state = after(state, answer, scheduler)
    return state


def rebuilt(events: Iterable[Event]) -> dict[str, State]:
    """Return all states, computed from events alone; the stored ones must equal them."""
    settings, answers = {}, dict[str, list[Event]]()
    for event in events:
        if event.kind == SCHEDULER:
            settings[event.subject] = event.detail
        elif event.kind == ANSWER:
            answers.setdefault(event.subject, []).append(event)

    def named(name: str | None, subject: str) -> "fsrs.Scheduler":
        found = settings.get(str(name)) or settings_for(subject)
        return scheduler_from(found)

    states = (replay(of_one, named) for of_one in answers.values())
    return {state.subject: state for state in states if state is not None}


def load(opened: sqlite3.Connection, subject: str) -> State | None:
    """Return the stored state of a subject."""
    row = opened.execute(f"SELECT {_COLUMNS} FROM states WHERE subject = ?", (subject,)).fetchone()
    return None if row is None else State(*row)


def load_all(opened: sqlite3.Connection) -> dict[str, State]:
    """Return every stored state, by subject."""
    rows = opened.execute(f"SELECT {_COLUMNS} FROM states ORDER BY subject")
    return {row[0]: State(*row) for row in rows}


def _follows(opened: sqlite3.Connection, answer: Event, earlier: State) -> bool:
    """Return whether `earlier` is the state after all other answers, all older than this one."""
    count = "SELECT COUNT(*) FROM events WHERE subject = ? AND kind = ?"
    num_answers: int = opened.execute(count, (answer.subject, ANSWER)).fetchone()[0]
    is_later = (earlier.last_s, earlier.last_uid) < (answer.at_s, answer.uid)
    return is_later and num_answers == earlier.num_answers + 1


def _settings_in_force(opened: sqlite3.Connection, answer: Event) -> str:
    """Return the name of today's settings, which are an event themselves, stored once."""
    settings = settings_for(answer.subject)
    name = name_of(settings)
    if not select(opened, name, SCHEDULER):
        # Without a time, so that every machine stores the same event, and a merge recognises it.
        insert(opened, Event(0.0, SCHEDULER, name, settings, uid_of_settings(name)))
    return name


def uid_of_settings(name: str) -> str:
    """Return the uid of the event that holds the settings."""
    return f"{SCHEDULER}-{name}"


def _stored_schedulers(opened: sqlite3.Connection) -> SchedulerNamed:
    def named(name: str | None, subject: str) -> "fsrs.Scheduler":
        stored = [] if name is None else select(opened, name, SCHEDULER)
        settings = stored[0].detail if stored else settings_for(subject)
        return scheduler_from(settings)

    return named


def _save(opened: sqlite3.Connection, state: State) -> None:
    marks = ", ".join("?" * (_COLUMNS.count(",") + 1))
    opened.execute(f"INSERT OR REPLACE INTO states ({_COLUMNS}) VALUES ({marks})", astuple(state))
