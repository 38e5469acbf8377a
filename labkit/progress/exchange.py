"""All events as one JSON file, for a backup, another machine or a program of the learner's own.

    {"format": "labkit-progress", "version": 1, "exported_at_s": 1.8e9,
     "events": [{"uid": "...", "at_s": 1.7e9, "kind": "check", "subject": "scan", "detail": {}}]}

Everything follows from events, due times included. Importing merges: an event is known by its uid,
so a file that is imported twice adds nothing the second time, and two machines that import each
other's files agree. A file is read and checked before anything changes, and its events are added in
one transaction.

The exported file is written whole or not at all, because a backup must not be half of one:

file, or a link to it     written beside it under another name, flushed, and renamed over it
pipe, device              written into: renaming over it would remove it for everybody
folder                    refused, like the empty name, which means the current folder
"""

import json
import os
import re
import shutil
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from labkit.arguments import UserError
from labkit.progress import clock, scheduling, statistics, store
from labkit.progress.clock import TROUBLE, store_name
from labkit.progress.event import Event, insert, select

FORMAT, VERSION = "labkit-progress", 1
_FIELDS = {"uid": str, "at_s": float, "kind": str, "subject": str, "detail": dict}
_UID = re.compile(r"[0-9a-z-]{1,64}")


class ExchangeError(UserError, ValueError):
    """A file of events that cannot be imported, or a place to which none can be written."""


def read_events(path: Path) -> list[Event]:
    """Return the events of an exported file. ExchangeError says what is wrong, and where."""
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
    settings = {event.subject for event in events if event.kind == scheduling.SCHEDULER}
    for number, event in enumerate(events, 1):
        name = event.detail.get("scheduler")
        if event.kind == scheduling.ANSWER and name is not None and name not in settings:
            raise ExchangeError(
                f"{path}: event {number} was scheduled with settings {name!r}, which the file does "
                "not hold; export it again, whole"
            )
    return events


def _document(path: Path) -> dict[str, Any]:
    """Return the file as JSON, if it is an export of a known version."""
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
    if version != VERSION:
        raise ExchangeError(
            f"{path} is of version {version!r}, and this labkit reads {VERSION}: update labkit"
        )
    if not isinstance(document.get("events"), list):
        raise ExchangeError(
            f'{path}: "events" must be a list; it is {document.get("events")!r:.40}'
        )
    return document


def _event(entry: Any, place: str) -> Event:
    """Return an event with the right fields and types. `place`: the beginning of an error."""
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
            entry["kind"],
            entry["subject"],
            entry["detail"],
            entry["uid"],
        )
        if not _UID.fullmatch(event.uid):
            raise ValueError(f"uid {event.uid!r:.80} is none: 1 to 64 of 0-9, a-z and -")
        _check_detail(event)
    except (ValueError, OverflowError) as error:
        raise ExchangeError(f"{place}: {error}") from error
    return event


def _check_detail(event: Event) -> None:
    """Check the fields of an event that labkit reads; other fields are for those who wrote them."""
    statistics.require(event)
    if event.kind == scheduling.SCHEDULER:
        if scheduling.name_of(event.detail) != event.subject:
            raise ValueError(f"settings {event.subject!r} are not those that have this name")
        if event.uid != scheduling.uid_of_settings(event.subject):
            raise ValueError(f"settings {event.subject!r} have the uid {event.uid!r}")
        if scheduling.is_installed():
            scheduling.scheduler_from(event.detail)


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path`; a file that was there keeps its mode.

    Raises OSError if it cannot be written; a file that was there is then unchanged.
    """
    if path.exists() and not path.is_file():  # a pipe, a device; a folder is refused
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link stays, and what it leads to is written
    beside = path.with_name(f".labkit-{uuid.uuid4().hex}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


__all__ = ["ExchangeError", "Imported", "export_json", "import_json"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import."""

    num_added: int
    num_known: int
    """Events of the file that the store had already."""


def export_json(path: Path) -> int:
    """Write every event to `path`, and return how many. An older file is replaced at the end.

    Raises ExchangeError if the store cannot be read or the file cannot be written.
    """
    text, num_events = exported()
    try:
        write_whole(path, text)
    except OSError as error:
        raise ExchangeError(f"{path} could not be written: {error.strerror or error}") from error
    return num_events


def exported() -> tuple[str, int]:
    """Return every event as the text of a file, and how many. ExchangeError if unreadable."""
    events = _with_the_store(lambda: store.reading(select), "could not be read")
    document = {
        "format": FORMAT,
        "version": VERSION,
        "exported_at_s": clock.now_s(),
        "events": [
            {
                "uid": event.uid,
                "at_s": event.at_s,
                "kind": event.kind,
                "subject": event.subject,
                "detail": event.detail,
            }
            for event in events
        ],
    }
    return json.dumps(document, indent=1) + "\n", len(events)


def import_json(path: Path) -> Imported:
    """Add the new events of an exported file, and schedule the subjects that they answer.

    Raises ExchangeError, with nothing changed, for a file that is not one of `export_json`'s, and
    where the store cannot be written.
    """
    incoming = read_events(path)

    def merge(opened: sqlite3.Connection) -> Imported:
        known = {event.uid: event for event in select(opened)}
        added = [event for event in incoming if event.uid not in known]
        for event in incoming:
            if event.uid in known and not _is_same(event, known[event.uid]):
                raise ExchangeError(
                    f"{path}: event {event.uid} says something else than the one of that name that "
                    "is here, so one of them was edited; nothing was imported"
                )
        for event in added:
            insert(opened, event)
        for subject in sorted({each.subject for each in added if each.kind == scheduling.ANSWER}):
            scheduling.refresh(opened, subject)
        return Imported(len(added), len(incoming) - len(added))

    return _with_the_store(lambda: store.writing(merge), "could not be written")


def _is_same(event: Event, other: Event) -> bool:
    # As text: in a NaN, which a detail may hold, nothing equals itself.
    return repr((event.at_s, event.kind, event.subject)) == repr(
        (other.at_s, other.kind, other.subject)
    ) and json.dumps(event.detail, sort_keys=True) == json.dumps(other.detail, sort_keys=True)


def _with_the_store(call: Callable[[], Result], what: str) -> Result:
    try:
        return call()
    except TROUBLE as error:
        raise ExchangeError(f"{store_name()} {what}: {error}") from error
