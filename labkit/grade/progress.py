"""What a learner has done so far: checks, hints, solutions shown, resets, predictions.

One table of events in one SQLite file, in `$LABKIT_HOME` or where this system keeps the data of
its users. Two processes may write at once. Grading never depends on it: where the file cannot be
read or written, a ProgressWarning says so, and the work goes on without a memory.
"""

import json
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

_FILE = "progress.sqlite3"
_BUSY_S = 5.0  # how long a writer waits for another one
_TABLE = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    at_s REAL NOT NULL,         -- seconds since 1970
    kind TEXT NOT NULL,         -- check, hint, solution, reset, ...
    subject TEXT NOT NULL,      -- the exercise, or whatever else the event is about
    detail TEXT NOT NULL        -- JSON object
)"""


class ProgressWarning(UserWarning):
    """Progress could not be read or kept; everything else goes on."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that the learner did."""

    at_s: float
    kind: str
    subject: str
    detail: dict[str, Any]


def home() -> Path:
    """The folder of everything that labkit remembers: `$LABKIT_HOME`, or this system's place.

    It need not exist yet.
    """
    chosen = os.environ.get("LABKIT_HOME")
    if chosen:
        return Path(chosen).expanduser()
    try:
        import platformdirs  # part of the lab, not of what a rank needs
    except ImportError:
        return Path.home() / ".labkit"
    return Path(platformdirs.user_data_dir("labkit", appauthor=False))


def record(kind: str, subject: str, **detail: Any) -> None:
    """Remember that something happened now. `detail`: what JSON can hold. Never raises."""
    row = (time.time(), kind, subject, json.dumps(detail, default=str))

    def insert(store: sqlite3.Connection) -> None:
        """One row, in one transaction."""
        with store:
            store.execute("INSERT INTO events (at_s, kind, subject, detail) VALUES (?,?,?,?)", row)

    _with_store(insert, "could not be written, so this is not remembered", None)


def events(subject: str | None = None, kind: str | None = None) -> list[Event]:
    """What happened, oldest first; of one subject and of one kind where given. Never raises."""

    def select(store: sqlite3.Connection) -> list[Event]:
        """The rows that match."""
        rows = store.execute(
            "SELECT at_s, kind, subject, detail FROM events "
            "WHERE (?1 IS NULL OR subject = ?1) AND (?2 IS NULL OR kind = ?2) ORDER BY id",
            (subject, kind),
        )
        return [Event(at_s, kind, subject, json.loads(text)) for at_s, kind, subject, text in rows]

    return _with_store(select, "could not be read, so earlier progress does not show", [])


def _with_store(
    work: Callable[[sqlite3.Connection], Result], consequence: str, otherwise: Result
) -> Result:
    """`work` on the open store; a corrupt store is kept aside and a fresh one begun, once."""
    for last_try in (False, True):
        try:
            with _open_store() as store:
                return work(store)
        except (OSError, sqlite3.OperationalError) as error:  # locked, read-only, disk full
            return _warned(f"{home() / _FILE} {consequence}: {error}", otherwise)
        except (sqlite3.DatabaseError, ValueError) as error:
            if last_try:
                return _warned(f"{home() / _FILE} {consequence}: {error}", otherwise)
            _keep_aside(home() / _FILE, error)
    raise AssertionError("the loop above returns")


@contextmanager
def _open_store() -> Iterator[sqlite3.Connection]:
    home().mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(home() / _FILE, timeout=_BUSY_S)) as store:
        store.execute(_TABLE)
        yield store


def _keep_aside(path: Path, error: Exception) -> None:
    """Rename a corrupt store to the first free `progress.corrupt-N.sqlite3`."""
    number = 1
    while (aside := path.with_name(f"progress.corrupt-{number}.sqlite3")).exists():
        number += 1
    # Its rollback journal belongs to it: applied to a fresh store, it would spoil that one too.
    with suppress(OSError):
        os.replace(path.with_name(f"{_FILE}-journal"), aside.with_name(f"{aside.name}-journal"))
    with suppress(OSError):  # another process was faster, or the folder is read-only
        os.replace(path, aside)
    _warned(f"{path} is damaged ({error}); it is kept as {aside.name}, and a new one begins", None)


def _warned(message: str, otherwise: Result) -> Result:
    warnings.warn(message, ProgressWarning, stacklevel=5)
    return otherwise
