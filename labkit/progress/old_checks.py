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

from labkit.progress import states
from labkit.progress.event import Event, insert, select

_OUTCOMES = ("passed", "wrong", "over budget", "crashed", "hung")


def answer_old_checks(opened: sqlite3.Connection, name: str) -> int:
    """Within a transaction: the answers of an exercise that has checks only. How many were made."""
    subject = f"exercise/{name}"
    if select(opened, subject, states.ANSWER):
        return 0
    events = select(opened, name)
    num_made = 0
    for number, check in enumerate(events):
        outcome = check.detail.get("outcome")
        if check.kind != "check" or outcome not in _OUTCOMES:
            continue
        rating = rating_of_check(events[:number], outcome == "passed")
        if rating is not None:
            detail = {"rating": rating, "outcome": outcome, "scheduler": None}
            uid = hashlib.sha256(f"answer to {check.uid}".encode()).hexdigest()[:32]
            insert(opened, Event(check.at_s, states.ANSWER, subject, detail, uid))
            num_made += 1
    if num_made:
        states.refresh(opened, subject)
    return num_made


def answer_all_old_checks(opened: sqlite3.Connection) -> None:
    """The same for every exercise of a store."""
    names = opened.execute("SELECT DISTINCT subject FROM events WHERE kind = 'check'")
    for (name,) in names.fetchall():
        answer_old_checks(opened, name)


def rating_of_check(earlier: list[Event], passed: bool) -> str | None:
    """What a check says, after the exercise's earlier events; None if it says nothing new.

    An exercise is practised in attempts. One begins with the stub (the first time, and after each
    `reset`) and ends with a pass. Within it

        the first wrong check               again   not known by heart today; more of them are the
                                                    same gap, looked at while it is being closed
        a pass, nothing wrong before        good    "easy" is for the learner to say, not for us
        a pass after a wrong check or hint  hard    known, with effort
        a pass after the solution           again   that shows that it can be copied
        not attempted; all after the pass   -       the file is still there; no memory was asked
    """
    resets = [number for number, event in enumerate(earlier) if event.kind == "reset"]
    attempt = earlier[resets[-1] + 1 :] if resets else earlier
    kinds = {event.kind for event in attempt}
    outcomes = {event.detail.get("outcome") for event in attempt if event.kind == "check"}
    went_wrong = bool(outcomes - {"passed", "not attempted"})
    if "passed" in outcomes:
        return None
    if not passed:
        return None if went_wrong else "again"
    if "solution" in kinds:
        return "again"
    return "hard" if went_wrong or "hint" in kinds else "good"
