"""What those who read an event's detail count on, kind by kind.

labkit writes nothing else, and shows some of it in a terminal. A file that was edited may hold
something else: an import refuses it, and what reads the whole store leaves such an event out and
says so. A field that a kind does not name here is for those who wrote it.
"""

from collections.abc import Iterable
from typing import Any

from labkit.progress import practice, states
from labkit.progress.event import Event
from labkit.progress.trouble import warn

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
    states.ANSWER: {"scheduler": str, "outcome": str},
}
_WITH_OUTCOME = [kind for kind, fields in _OPTIONAL.items() if "outcome" in fields]
# As in grade/outcome.py: how a check or a puzzle can end.
OUTCOMES = ("not attempted", "wrong", "over budget", "crashed", "hung", "passed")


def require(event: Event) -> None:
    """Raises ValueError, which names the field and its value, where a detail is of another form."""
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
    if event.kind == states.ANSWER:
        practice.check_subject(event.subject)
        practice.check_rating(event.detail.get("rating", ""))
    if event.kind == "mock" and not 0 <= event.detail["score"] <= 1:  # not a number is neither
        raise ValueError(f"score is {event.detail['score']!r:.40}; it is a share, from 0 to 1")


def usable(events: Iterable[Event]) -> list[Event]:
    """The events whose details are as they should be; each other one is a ProgressWarning."""
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
