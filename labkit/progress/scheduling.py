"""When to ask again: FSRS, from the package `fsrs`, which is imported only here and when needed.

FSRS models a memory by its stability S (after S days the chance of recall is down to 90 %) and its
difficulty (1 to 10). A rating changes both, and the next question is due when the chance of recall
has come down to what is desired. Method: Ye, Su and Cao, "A Stochastic Shortest Path Algorithm for
Optimizing Spaced Repetition Scheduling", KDD 2022; the package computes its sixth version.

Everything that goes into a state is stored: each answer with its time, its rating and the name of
the settings it was scheduled with, and these settings themselves. The package's random spread of
intervals is off, since no event could bring it back.
"""

import functools
import hashlib
import importlib.metadata
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from labkit.progress.event import Event

if TYPE_CHECKING:
    import fsrs

RATINGS = ("again", "hard", "good", "easy")
# What is practised: the part of a subject's name before the first "/".
PRACTISED = ("card", "drill", "case", "exercise", "prediction", "claim")
DESIRED_RETENTION = 0.9
_REVIEW = 2  # see State.phase
LONGEST_DAYS = 365  # whoever prepares for an interview wants to see everything once a year
# After "again" a card comes back while one still sits there. An exercise takes half an hour, and to
# predict a number or to vote on a claim a second time shows nothing on the same day: these wait for
# another day.
_STEPS_S = {
    "card": (600,), "drill": (600,), "case": (), "exercise": (), "prediction": (), "claim": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class State:
    """What is known about the memory of one subject, after its latest answer."""

    subject: str
    num_answers: int
    last_uid: str
    """Of the latest answer."""
    last_s: float
    """When that was, in seconds since 1970; so is `due_s`."""
    due_s: float
    stability: float
    """Days until the chance of recall is down to 90 %."""
    difficulty: float
    """1 to 10."""
    phase: int
    """1: learning, 2: review, 3: relearning."""
    step: int | None
    """Of learning or relearning; None in review."""


def is_installed() -> bool:
    """Whether the package is there; without it, answers are stored and scheduled later."""
    try:
        import fsrs  # noqa: F401
    except ImportError:
        return False
    return True


def settings_for(subject: str) -> dict[str, Any]:
    """What a subject is scheduled with today, as JSON holds it. See `name_of`."""
    return _settings(subject.partition("/")[0])


def name_of(settings: dict[str, Any]) -> str:
    """A name that follows from the settings: the same on every machine."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def scheduler_from(settings: dict[str, Any]) -> "fsrs.Scheduler":
    """The scheduler of stored settings. Raises ValueError where they are not its settings."""
    import fsrs

    try:
        return fsrs.Scheduler.from_dict(settings)  # type: ignore[arg-type]
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"no settings of FSRS: {error!r}") from error


def after(state: State | None, answer: Event, scheduler: "fsrs.Scheduler") -> State:
    """The state after one more answer; `state` None before a subject's first."""
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
    """The chance, 0 to 1, that the subject would be recalled then, by whole days since the last."""
    scheduler = scheduler_from(settings_for(state.subject))
    return float(scheduler.get_card_retrievability(_card(state), _utc(at_s)))


def is_learnt(state: State) -> bool:
    """Whether it is past its first steps, and would be recalled tomorrow, as likely as desired."""
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
        return fsrs.Card(card_id=0)  # without a number of its own, it waits to draw one
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
