"""An exported file, read and checked whole before anything of it is used."""

import json
import re
from pathlib import Path
from typing import Any

from labkit.arguments import UserError
from labkit.progress import clock, details, scheduling, states
from labkit.progress.event import Event

FORMAT, VERSION = "labkit-progress", 1
_FIELDS = {"uid": str, "at_s": float, "kind": str, "subject": str, "detail": dict}
_UID = re.compile(r"[0-9a-z-]{1,64}")


class ExchangeError(UserError, ValueError):
    """A file of events that cannot be imported, or a place to which none can be written."""


def read_events(path: Path) -> list[Event]:
    """The events of an exported file. Raises ExchangeError, which says what is wrong where."""
    document = _document(path)
    events = [_event(entry, f"{path}: event {n}") for n, entry in enumerate(document["events"], 1)]
    first_of: dict[str, int] = {}
    for number, event in enumerate(events, 1):
        if event.uid in first_of:
            raise ExchangeError(
                f"{path}: event {number} has the uid of event {first_of[event.uid]}, {event.uid}; "
                "each has one of its own"
            )
        first_of[event.uid] = number
    settings = {event.subject for event in events if event.kind == states.SCHEDULER}
    for number, event in enumerate(events, 1):
        name = event.detail.get("scheduler")
        if event.kind == states.ANSWER and name is not None and name not in settings:
            raise ExchangeError(
                f"{path}: event {number} was scheduled with settings {name!r}, which the file does "
                "not hold; export it again, whole"
            )
    return events


def _document(path: Path) -> dict[str, Any]:
    """The file as JSON, if it says that it is an export and of a version that is known."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ExchangeError(f"{path} could not be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ExchangeError(
            f"{path} is no JSON ({error}); give a file that `labkit export --json` has written"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ExchangeError(
            f'{path} is no export of labkit: "format" must be "{FORMAT}"; give a file that '
            "`labkit export --json` has written"
        )
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ExchangeError(f'{path}: "version" is {version!r}; it is a whole number from 1 on')
    if version > VERSION:
        raise ExchangeError(
            f"{path} is of version {version}, and this labkit reads up to {VERSION}: update labkit"
        )
    if not isinstance(document.get("events"), list):
        raise ExchangeError(
            f'{path}: "events" must be a list; it is {document.get("events")!r:.40}'
        )
    return document


def _event(entry: Any, place: str) -> Event:
    """One event, of the right fields and types. `place`: how an error begins."""
    if not isinstance(entry, dict) or set(entry) != set(_FIELDS):
        found = ", ".join(sorted(entry)) if isinstance(entry, dict) else repr(entry)[:40]
        raise ExchangeError(f"{place} needs exactly {', '.join(_FIELDS)}; it has {found}")
    for field, wanted in _FIELDS.items():
        value = entry[field]
        fits = isinstance(value, (int, float) if wanted is float else wanted)
        if not fits or isinstance(value, bool):
            raise ExchangeError(f"{place}: {field} is {value!r:.40}, and no {wanted.__name__}")
    try:
        event = Event(
            clock.check_time(entry["at_s"]),
            _text(entry["kind"], "kind"),
            _text(entry["subject"], "subject"),
            entry["detail"],
            entry["uid"],
        )
        if not _UID.fullmatch(event.uid):
            raise ValueError(f"uid {event.uid!r:.80} is none: 1 to 64 of 0-9, a-z and -")
        _check_detail(event)
    except (ValueError, OverflowError) as error:
        raise ExchangeError(f"{place}: {error}") from error
    return event


def _text(value: str, field: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} holds half a character ({error.reason})") from error
    if not value:
        raise ValueError(f"{field} is empty")
    return value


def _check_detail(event: Event) -> None:
    """What labkit reads of it must be right; the rest is for those who wrote it."""
    details.require(event)
    if event.kind == states.SCHEDULER:
        if scheduling.name_of(event.detail) != event.subject:
            raise ValueError(f"settings {event.subject!r} are not those that have this name")
        if event.uid != states.uid_of_settings(event.subject):
            raise ValueError(f"settings {event.subject!r} have the uid {event.uid!r}")
        if scheduling.is_installed():
            scheduling.scheduler_from(event.detail)
