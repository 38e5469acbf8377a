"""An event, and functions that write events to the store and read them, within a transaction."""

import json
import sqlite3
import uuid
from dataclasses import dataclass
from typing import Any

from labkit.progress.clock import DamagedStore


@dataclass(frozen=True, slots=True)
class Event:
    """An action of the learner."""

    at_s: float
    kind: str
    subject: str
    detail: dict[str, Any]
    uid: str = ""
    """Id of the event, the same on every machine."""


def insert(opened: sqlite3.Connection, event: Event) -> str:
    """Add an event, within a transaction; return its uid, a new one if it has none yet."""
    uid = event.uid or uuid.uuid4().hex
    detail = json.dumps(event.detail, default=str)
    opened.execute(
        "INSERT INTO events (uid, at_s, kind, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (uid, event.at_s, _storable(event.kind), _storable(event.subject), detail),
    )
    return uid


def select(
    opened: sqlite3.Connection, subject: str | None = None, kind: str | None = None
) -> list[Event]:
    """Return the events that match, oldest first by time, since imported ones may come in later."""
    wanted = {"subject": subject, "kind": kind}
    given = {column: value for column, value in wanted.items() if value is not None}
    where = " AND ".join(f"{column} = :{column}" for column in given) or "TRUE"
    rows = opened.execute(
        f"SELECT at_s, kind, subject, detail, uid FROM events WHERE {where} ORDER BY at_s, id",
        {column: _storable(value) for column, value in given.items()},
    )
    return [_event(*row) for row in rows]


def _event(at_s: float, kind: str, subject: str, detail: str, uid: str) -> Event:
    try:
        found = json.loads(detail)
    except ValueError as error:
        raise DamagedStore(f"event {uid} holds {detail[:40]!r}, which is no JSON") from error
    if not isinstance(found, dict):
        raise DamagedStore(f"event {uid} holds {detail[:40]!r}, which is no JSON object")
    return Event(at_s, kind, subject, found, uid)


def _storable(text: str) -> str:
    """Replace halves of characters, which SQLite refuses, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
