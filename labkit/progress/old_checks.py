"""Checks of the first labkit, which knew no answers, as the answers that they would be today.

Without them an exercise that was passed then counts as never practised. They are made where such
checks are met: when a store is migrated, and when a file is imported. An exercise that has any
answer is left alone: its checks were rated when they were made.

What is made follows from the checks alone, names included, so that two copies of an old store stay
equal. So an answer names no settings of FSRS, which may differ from machine to machine: as one from
before fsrs was installed it is scheduled with today's.
"""

import hashlib
import sqlite3

from labkit.progress import log, states
from labkit.progress.graded import rating_of_check
from labkit.progress.log import Event

_OUTCOMES = ("passed", "wrong", "over budget", "crashed", "hung")


def answer_old_checks(opened: sqlite3.Connection, name: str) -> int:
    """Within a transaction: the answers of an exercise that has checks only. How many were made."""
    subject = f"exercise/{name}"
    if log.select(opened, subject, states.ANSWER):
        return 0
    events = log.select(opened, name)
    num_made = 0
    for number, check in enumerate(events):
        outcome = check.detail.get("outcome")
        if check.kind != "check" or outcome not in _OUTCOMES:
            continue
        rating = rating_of_check(events[:number], outcome == "passed")
        if rating is not None:
            detail = {"rating": rating, "outcome": outcome, "scheduler": None}
            uid = hashlib.sha256(f"answer to {check.uid}".encode()).hexdigest()[:32]
            log.insert(opened, Event(check.at_s, states.ANSWER, subject, detail, uid))
            num_made += 1
    if num_made:
        states.refresh(opened, subject)
    return num_made


def answer_all_old_checks(opened: sqlite3.Connection) -> None:
    """The same for every exercise of a store."""
    names = opened.execute("SELECT DISTINCT subject FROM events WHERE kind = 'check'")
    for (name,) in names.fetchall():
        answer_old_checks(opened, name)
