"""Checks as answers; those of the first labkit, which knew no answers, as what they would be today.

Without them an exercise that was passed then counts as never practised. They are made where such
checks are met: when a store is migrated, and when a file is imported. An exercise that has any
answer is left alone: its checks were rated when they were made.

What is made follows from the checks alone, names included, so that two copies of an old store stay
equal. So an answer names no settings of FSRS, which may differ from machine to machine: as one from
before fsrs was installed it is scheduled with today's.
"""

import hashlib
import sqlite3
from typing import Any

from labkit.progress import scheduling
from labkit.progress.event import Event, insert, select

_OUTCOMES = ("passed", "wrong", "over budget", "crashed", "hung")


def answer_old_checks(opened: sqlite3.Connection, name: str) -> int:
    """Within a transaction: the answers of an exercise that has checks only. How many were made."""
    subject = f"exercise/{name}"
    if select(opened, subject, scheduling.ANSWER):
        return 0
    attempt = _Attempt()
    num_made = 0
    for check in select(opened, name):
        outcome, rating = check.detail.get("outcome"), None
        if check.kind == "check" and outcome in _OUTCOMES:
            rating = attempt.rating_of_check(outcome == "passed")
        attempt.add(check)
        if rating is not None:
            detail = {"rating": rating, "outcome": outcome, "scheduler": None}
            uid = hashlib.sha256(f"answer to {check.uid}".encode()).hexdigest()[:32]
            insert(opened, Event(check.at_s, scheduling.ANSWER, subject, detail, uid))
            num_made += 1
    if num_made:
        scheduling.refresh(opened, subject)
    return num_made


def answer_all_old_checks(opened: sqlite3.Connection) -> None:
    """The same for every exercise of a store."""
    names = opened.execute("SELECT DISTINCT subject FROM events WHERE kind = 'check'")
    for (name,) in names.fetchall():
        answer_old_checks(opened, name)


def rating_of_check(earlier: list[Event], passed: bool) -> str | None:
    """What a check says, after the exercise's earlier events; None if it says nothing new."""
    attempt = _Attempt()
    for event in earlier:
        attempt.add(event)
    return attempt.rating_of_check(passed)


class _Attempt:
    """What has happened in the attempt that is going on. One step per event: stores may be long.

    An exercise is practised in attempts. One begins with the stub (the first time, and after each
    `reset`) and ends with a pass. Within it

        the first wrong check               again   not known by heart today; more of them are the
                                                    same gap, looked at while it is being closed
        a pass, nothing wrong before        good    "easy" is for the learner to say, not for us
        a pass after a wrong check or hint  hard    known, with effort
        a pass after the solution           again   that shows that it can be copied
        not attempted; all after the pass   -       the file is still there; no memory was asked
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._kinds: set[str] = set()
        self._outcomes: set[Any] = set()

    def add(self, event: Event) -> None:
        """The next event of the exercise."""
        if event.kind == "reset":
            self._begin()
            return
        self._kinds.add(event.kind)
        if event.kind == "check":
            self._outcomes.add(event.detail.get("outcome"))

    def rating_of_check(self, passed: bool) -> str | None:
        """Of a check that comes next."""
        went_wrong = bool(self._outcomes - {"passed", "not attempted"})
        if "passed" in self._outcomes:
            return None
        if not passed:
            return None if went_wrong else "again"
        if "solution" in self._kinds:
            return "again"
        return "hard" if went_wrong or "hint" in self._kinds else "good"
