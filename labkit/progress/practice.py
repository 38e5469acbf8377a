"""Practice: answers, the next subjects to ask, and the log of a learner's actions.

    practice.answer("card/co-8", "good")       stored, and the card scheduled again
    practice.due(prefix="card/")               due cards, the longest overdue first
    practice.next_intervals("card/co-8")       {"again": "10 minutes", ..., "easy": "8 days"}

Subjects are "card/co-8", "drill/bubble_share", "case/2" (a difficulty), "exercise/scan",
"prediction/<key>" and "claim/ring-8". Ratings are the four of FSRS: "again" (not known), "hard"
(known with effort), "good", "easy".

Checks of exercises, predictions and votes on claims become ratings. A prediction is right within
its tolerance (good) or not (again). Being close counts as wrong, because a factor of two is the
usual confusion. A prediction is judged once, and once a day, since a new one after the answer was
shown would be copied. The same holds for a vote on a claim, when the court shows its verdict.

`record` and `events` are the log: checks, hints, solutions shown, predictions, answers. Events are
only ever added. No function here raises because of the store: if it cannot be written or read, a
ProgressWarning says so.
"""

import sqlite3
from typing import Any

from labkit.progress import clock, scheduling, store
from labkit.progress.clock import or_warn, warn
from labkit.progress.event import Event, insert, select
from labkit.progress.scheduling import PRACTISED, RATINGS, State

__all__ = ["RATINGS", "State", "answer", "due", "next_intervals", "retrievability", "state"]

NOT_WRITTEN = "could not be written, so this is not remembered"
NOT_READ = "could not be read, so earlier progress does not show"

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_OF_THE_STORE = ("scheduler",)


def answer(
    subject: str, rating: str, *, at_s: float | None = None, **detail: object
) -> State | None:
    """Store one answer and schedule its subject again, in one transaction.

    at_s: its time, in seconds since 1970; now, if left out. detail: other data about it that JSON
    can hold.

    When this returns a state, the answer is on the disk, and survives a kill or a power cut. It
    returns None if nothing could be stored, which a ProgressWarning says, and if fsrs is not
    installed. Without fsrs the answer is stored, and scheduled with the subject's next one.
    An answer dated in the future, by a clock that was ahead, gives a ProgressWarning too.
    Raises ValueError for another subject, rating or time, and for the detail "scheduler".
    """
    check_subject(subject)
    check_rating(rating)
    if taken := [name for name in _OF_THE_STORE if name in detail]:
        raise ValueError(f"detail {taken[0]!r} is the store's own; call yours something else")
    now_s = clock.now_s()
    at_s = clock.check_time(now_s if at_s is None else at_s)
    given = Event(at_s, scheduling.ANSWER, subject, {**detail, "rating": rating})
    after = or_warn(
        lambda: store.writing(lambda opened: scheduling.add_answer(opened, given)),
        NOT_WRITTEN,
        None,
    )
    if after is not None and at_s <= now_s < after.last_s:
        # A state is a function of the answers alone, so a wrongly dated answer counts.
        warn(
            f"an earlier answer to {subject} is dated {clock.day_of(after.last_s):%d %b %Y}, which "
            "is still to come: a clock was ahead. This answer is stored as given before it, and "
            f"{subject} is due by that one, on {clock.day_of(after.due_s):%d %b %Y}; ask for it by "
            "name until then"
        )
    return after


def state(subject: str) -> State | None:
    """Return the state of a subject's memory; None before its first answer. Raises ValueError."""
    check_subject(subject)
    return or_warn(
        lambda: store.reading(lambda opened: scheduling.load(opened, subject)), NOT_READ, None
    )


def all_states() -> dict[str, State]:
    """Return the states of all subjects that were ever answered, by subject."""
    return or_warn(lambda: store.reading(scheduling.load_all), NOT_READ, {})


def due(now_s: float | None = None, prefix: str = "") -> list[State]:
    """Return the due subjects that begin with `prefix`, the longest overdue first."""
    now_s = clock.now_s() if now_s is None else now_s
    ready = [
        each
        for each in all_states().values()
        if each.due_s <= now_s and each.subject.startswith(prefix)
    ]
    return sorted(ready, key=lambda each: (each.due_s, each.subject))


def retrievability(subject: str, now_s: float | None = None) -> float | None:
    """Return the chance of recall now, 0 to 1, or None before the subject's first answer.

    By whole days since the last answer, as FSRS counts. Needs the package fsrs (ImportError).
    """
    known = state(subject)
    now_s = clock.now_s() if now_s is None else now_s
    return None if known is None else scheduling.retrievability(known, now_s)


def next_intervals(subject: str, now_s: float | None = None) -> dict[str, str]:
    """Return the time until the subject would be due, by rating: `{"good": "2 days", ...}`.

    Needs the package fsrs (ImportError).
    """
    known = state(subject)
    now_s = clock.now_s() if now_s is None else now_s
    if known is not None:
        now_s = max(now_s, known.last_s)
    scheduler = scheduling.scheduler_from(scheduling.settings_for(subject))
    following = {
        rating: scheduling.after(
            known, Event(now_s, scheduling.ANSWER, subject, {"rating": rating}), scheduler
        )
        for rating in RATINGS
    }
    return {rating: in_words(each.due_s - now_s) for rating, each in following.items()}


def in_words(seconds: float) -> str:
    """Write a time to wait, in the one unit that suits it: `10 minutes`, `1 day`, `3 months`."""
    for unit, unit_s, up_to in (
        ("minute", _MINUTE_S, 60),
        ("hour", _HOUR_S, 24),
        ("day", _DAY_S, 60),
        ("month", 30 * _DAY_S, 12),
        ("year", 365 * _DAY_S, float("inf")),
    ):
        number = round(seconds / unit_s)
        if number < up_to:
            return f"{max(number, 0)} {unit}{'' if number == 1 else 's'}"
    raise ValueError(f"{seconds} seconds is no time to wait")


def check_subject(subject: str) -> None:
    """Raise ValueError unless it is the name of a subject of practice."""
    practised, _, name = subject.partition("/")
    if practised not in PRACTISED or not name:
        kinds = ", ".join(f"{each}/<name>" for each in PRACTISED)
        raise ValueError(f"subject {subject!r} is not one that is practised: write {kinds}")


def check_rating(rating: str) -> None:
    """Raise ValueError unless it is one of RATINGS."""
    if rating not in RATINGS:
        raise ValueError(f"rating {rating!r}: it is one of {', '.join(RATINGS)}")


def record(kind: str, subject: str, **detail: Any) -> None:
    """Store an event that happened now. `detail`: what JSON can hold. Never raises."""
    event = Event(clock.now_s(), kind, subject, detail)
    or_warn(lambda: store.writing(lambda opened: insert(opened, event)), NOT_WRITTEN, "")


def events(subject: str | None = None, kind: str | None = None) -> list[Event]:
    """Return events, oldest first; of one subject and of one kind where given. Never raises."""
    return or_warn(
        lambda: store.reading(lambda opened: select(opened, subject, kind)), NOT_READ, []
    )


def record_check(name: str, *, attempted: bool, passed: bool, **detail: Any) -> None:
    """Store a check of an exercise, and the rating that follows from it. Never raises."""
    check = Event(clock.now_s(), "check", name, detail)

    def both(opened: sqlite3.Connection) -> None:
        """Store the check and the answer in one transaction."""
        rating = _rating_of_check(select(opened, name), passed) if attempted else None
        insert(opened, check)
        if rating is not None:
            answer = {"rating": rating, "outcome": detail.get("outcome")}
            scheduling.add_answer(
                opened, Event(check.at_s, scheduling.ANSWER, f"exercise/{name}", answer)
            )

    or_warn(lambda: store.writing(both), NOT_WRITTEN, None)


def _rating_of_check(earlier: list[Event], passed: bool) -> str | None:
    """Rate a check, given the exercise's earlier events; None if it says nothing new.

    An exercise is practised in attempts. One begins with the stub (the first time, and after each
    `reset`) and ends with a pass. Within it

        the first wrong check               again   not known by heart today; more of them are the
                                                    same gap, looked at while it is being closed
        a pass, nothing wrong before        good    "easy" is for the learner to say, not for us
        a pass after a wrong check or hint  hard    known, with effort
        a pass after the solution           again   that shows that it can be copied
        not attempted; all after the pass   -       the file is still there; memory was not tested
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


def record_judged(key: str, *, right: bool) -> None:
    """Store how the latest prediction of `key` was judged. Never raises."""
    _record_latest("prediction", key, f"prediction/{key}", right)


def record_tried(key: str, *, right: bool) -> None:
    """Store whether the latest vote on a claim was the court's verdict. Never raises."""
    _record_latest("vote", key, f"claim/{key}", right)


def _record_latest(kind: str, key: str, subject: str, right: bool) -> None:
    now_s = clock.now_s()

    def judge(opened: sqlite3.Connection) -> None:
        committed = select(opened, key, kind)
        judged = select(opened, subject, scheduling.ANSWER)
        if not committed or _was_judged(committed[-1], judged, now_s):
            return
        answer = {"rating": "good" if right else "again", kind: committed[-1].uid}
        scheduling.add_answer(opened, Event(now_s, scheduling.ANSWER, subject, answer))

    or_warn(lambda: store.writing(judge), NOT_WRITTEN, None)


def _was_judged(committed: Event, judged: list[Event], now_s: float) -> bool:
    """Return whether this one, or another one of its key on the same day, was judged."""
    return any(
        event.detail.get(committed.kind) == committed.uid
        or clock.day_of(event.at_s) == clock.day_of(now_s)
        for event in judged
    )
