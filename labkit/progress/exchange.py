"""All events as one JSON file, for a backup, another machine or a program of the learner's own.

    {"format": "labkit-progress", "version": 1, "exported_at_s": 1.8e9,
     "events": [{"uid": "...", "at_s": 1.7e9, "kind": "check", "subject": "scan", "detail": {}}]}

Events are all there is: what is due follows from them. Importing merges: an event is known by its
uid, so a file that is imported twice adds nothing the second time, and two machines that import
each other's files agree. A file is read and checked (exchange_file.py) before anything changes, and
what it adds comes in with one transaction.
"""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from labkit.progress import clock, old_checks, states, store
from labkit.progress.event import Event, insert, select
from labkit.progress.exchange_file import FORMAT, VERSION, ExchangeError, read_events
from labkit.progress.home import store_name
from labkit.progress.trouble import TROUBLE
from labkit.progress.whole_file import write_whole

__all__ = ["ExchangeError", "Imported", "export_json", "import_json"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has done."""

    num_added: int
    num_known: int
    """Events of the file that were there already."""


def export_json(path: Path) -> int:
    """Write every event to `path`, and return how many. What stood there is replaced at the end.

    Raises ExchangeError where the store cannot be read or the file not be written.
    """
    text, num_events = exported()
    try:
        write_whole(path, text)
    except OSError as error:
        raise ExchangeError(f"{path} could not be written: {error.strerror or error}") from error
    return num_events


def exported() -> tuple[str, int]:
    """Every event as the text of a file, and how many. ExchangeError: they cannot be read."""
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
    """Add the events of an exported file that are not there yet, and schedule what they answer.

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
        try:
            for name in sorted({each.subject for each in added if each.kind == "check"}):
                subject = f"exercise/{name}"
                old_checks.answer_old_checks(opened, name)
            for subject in sorted({each.subject for each in added if each.kind == states.ANSWER}):
                states.refresh(opened, subject)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ExchangeError(
                f"{path}: its settings do not let {subject} be scheduled: {error!r}; nothing was "
                "imported"
            ) from error
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
