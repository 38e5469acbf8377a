"""Checks of exercises, judged predictions and votes as answers: what counts, and how well.

What a check says: `rating_of_check` in old_checks.py.

A prediction is right within its tolerance (good) or not (again). Being close counts as not: a
factor of two is the usual confusion, not half of the knowledge. It is judged once, and once on a
day: who commits again after the answer was shown is copying. So is a vote on a claim, when the
court shows its verdict.
"""

import sqlite3
from typing import Any

from labkit.progress import clock, log, states, store
from labkit.progress.event import Event, insert, select
from labkit.progress.old_checks import rating_of_check
from labkit.progress.trouble import or_warn


def record_check(name: str, *, attempted: bool, passed: bool, **detail: Any) -> None:
    """Remember a check of an exercise, and what it says about its learner. Never raises."""
    check = Event(clock.now_s(), "check", name, detail)

    def both(opened: sqlite3.Connection) -> None:
        """The check and the answer in one transaction."""
        rating = rating_of_check(select(opened, name), passed) if attempted else None
        insert(opened, check)
        if rating is not None:
            answer = {"rating": rating, "outcome": detail.get("outcome")}
            states.add_answer(opened, Event(check.at_s, states.ANSWER, f"exercise/{name}", answer))

    or_warn(lambda: store.writing(both), log.NOT_WRITTEN, None)


def record_judged(key: str, *, right: bool) -> None:
    """Remember how the latest prediction of `key` was judged. Never raises."""
    _record_latest("prediction", key, f"prediction/{key}", right)


def record_tried(key: str, *, right: bool) -> None:
    """Remember whether the latest vote on a claim was the court's verdict. Never raises."""
    _record_latest("vote", key, f"claim/{key}", right)


def _record_latest(kind: str, key: str, subject: str, right: bool) -> None:
    now_s = clock.now_s()

    def judge(opened: sqlite3.Connection) -> None:
        committed = select(opened, key, kind)
        judged = select(opened, subject, states.ANSWER)
        if not committed or _was_judged(committed[-1], judged, now_s):
            return
        answer = {"rating": "good" if right else "again", kind: committed[-1].uid}
        states.add_answer(opened, Event(now_s, states.ANSWER, subject, answer))

    or_warn(lambda: store.writing(judge), log.NOT_WRITTEN, None)


def _was_judged(committed: Event, judged: list[Event], now_s: float) -> bool:
    """Whether this prediction or vote was, or another one of its key on the same day."""
    return any(
        event.detail.get(committed.kind) == committed.uid
        or clock.day_of(event.at_s) == clock.day_of(now_s)
        for event in judged
    )
