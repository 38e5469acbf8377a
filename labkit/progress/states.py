"""States out of answers. A state is a function of the set of a subject's answers.

In which order they came in does not matter: they count in the order of their times, and at equal
times of their names. So two machines that exchange their events agree, and whoever rebuilds a state
from the events gets the stored one, to the last digit.
"""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from typing import TYPE_CHECKING

from labkit.progress import scheduling
from labkit.progress.event import Event, insert, select
from labkit.progress.scheduling import State

if TYPE_CHECKING:
    import fsrs

ANSWER, SCHEDULER = "answer", "scheduler"

# The name of stored settings (None: an answer from before fsrs was installed), and the subject.
SchedulerNamed = Callable[[str | None, str], "fsrs.Scheduler"]
_COLUMNS = "subject, num_answers, last_uid, last_s, due_s, stability, difficulty, phase, step"


def add_answer(opened: sqlite3.Connection, answer: Event) -> State | None:
    """Store an answer and the state after it, within a transaction. None: fsrs is missing.

    answer: its detail holds "rating"; the name of the settings in force is added to it.
    """
    name = _settings_in_force(opened, answer) if scheduling.is_installed() else None
    answer = replace(answer, kind=ANSWER, detail={**answer.detail, "scheduler": name})
    answer = replace(answer, uid=insert(opened, answer))
    earlier = load(opened, answer.subject)
    if earlier is None or name is None or not _follows(opened, answer, earlier):
        return refresh(opened, answer.subject)
    state = scheduling.after(earlier, answer, _stored_schedulers(opened)(name, answer.subject))
    _save(opened, state)
    return state


def refresh(opened: sqlite3.Connection, subject: str) -> State | None:
    """Make a subject's state anew from its answers, and store it, within a transaction."""
    if not scheduling.is_installed():
        return None  # the old state stays, and is seen to be old by its number of answers
    state = replay(select(opened, subject, ANSWER), _stored_schedulers(opened))
    if state is not None:
        _save(opened, state)
    return state


def replay(answers: Iterable[Event], scheduler_named: SchedulerNamed) -> State | None:
    """The state after all answers of one subject, given in any order; None after none."""
    state = None
    for answer in sorted(answers, key=lambda event: (event.at_s, event.uid)):
        scheduler = scheduler_named(answer.detail.get("scheduler"), answer.subject)
        state = scheduling.after(state, answer, scheduler)
    return state


def rebuilt(events: Iterable[Event]) -> dict[str, State]:
    """All states, from nothing but events: what the stored ones must be equal to."""
    settings, answers = {}, dict[str, list[Event]]()
    for event in events:
        if event.kind == SCHEDULER:
            settings[event.subject] = event.detail
        elif event.kind == ANSWER:
            answers.setdefault(event.subject, []).append(event)

    def named(name: str | None, subject: str) -> "fsrs.Scheduler":
        found = settings.get(str(name)) or scheduling.settings_for(subject)
        return scheduling.scheduler_from(found)

    states = (replay(of_one, named) for of_one in answers.values())
    return {state.subject: state for state in states if state is not None}


def load(opened: sqlite3.Connection, subject: str) -> State | None:
    """The stored state of a subject."""
    row = opened.execute(f"SELECT {_COLUMNS} FROM states WHERE subject = ?", (subject,)).fetchone()
    return None if row is None else State(*row)


def load_all(opened: sqlite3.Connection) -> dict[str, State]:
    """Every stored state, by subject."""
    rows = opened.execute(f"SELECT {_COLUMNS} FROM states ORDER BY subject")
    return {row[0]: State(*row) for row in rows}


def _follows(opened: sqlite3.Connection, answer: Event, earlier: State) -> bool:
    """Whether `earlier` is the state of all other answers, and they all come before this one."""
    count = "SELECT COUNT(*) FROM events WHERE subject = ? AND kind = ?"
    num_answers: int = opened.execute(count, (answer.subject, ANSWER)).fetchone()[0]
    is_later = (earlier.last_s, earlier.last_uid) < (answer.at_s, answer.uid)
    return is_later and num_answers == earlier.num_answers + 1


def _settings_in_force(opened: sqlite3.Connection, answer: Event) -> str:
    """The name of today's settings, which are an event themselves, stored once."""
    settings = scheduling.settings_for(answer.subject)
    name = scheduling.name_of(settings)
    if not select(opened, name, SCHEDULER):
        # Of no time: every machine stores the same event, and a merge finds it known.
        insert(opened, Event(0.0, SCHEDULER, name, settings, uid_of_settings(name)))
    return name


def uid_of_settings(name: str) -> str:
    """The uid of the event that holds the settings."""
    return f"{SCHEDULER}-{name}"


def _stored_schedulers(opened: sqlite3.Connection) -> SchedulerNamed:
    def named(name: str | None, subject: str) -> "fsrs.Scheduler":
        stored = [] if name is None else select(opened, name, SCHEDULER)
        settings = stored[0].detail if stored else scheduling.settings_for(subject)
        return scheduling.scheduler_from(settings)

    return named


def _save(opened: sqlite3.Connection, state: State) -> None:
    marks = ", ".join("?" * (_COLUMNS.count(",") + 1))
    opened.execute(f"INSERT OR REPLACE INTO states ({_COLUMNS}) VALUES ({marks})", astuple(state))
