"""The file of the store: opened for each operation, and safe with several processes.

SQLite's locks and journal keep processes apart and undo interrupted writes. A writer takes the lock
before it reads the data that its change depends on (BEGIN IMMEDIATE). An open connection must not
go through a fork, and a lab forks; so none is kept.

`PRAGMA user_version` is the version of a file. A damaged store is kept, under another name, and
a fresh one begins.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from labkit.progress.clock import DamagedStore, NewerStore, home, is_damage, store_path, warn

VERSION = 2
BUSY_S = 5.0  # how long one process waits for others

_TABLES = (
    """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    uid TEXT NOT NULL UNIQUE,
    at_s REAL NOT NULL,         -- seconds since 1970
    kind TEXT NOT NULL,         -- check, hint, prediction, answer, scheduler, ...
    subject TEXT NOT NULL,      -- the exercise, the card, or whatever else the event is about
    detail TEXT NOT NULL        -- JSON object
)""",
    "CREATE INDEX IF NOT EXISTS events_by_subject ON events (subject, kind)",
    # States follow from the answers among the events, so they can be deleted and computed again.
    """
CREATE TABLE IF NOT EXISTS states (
    subject TEXT PRIMARY KEY,
    num_answers INTEGER NOT NULL,
    last_uid TEXT NOT NULL,     -- of the latest answer
    last_s REAL NOT NULL,       -- when that was
    due_s REAL NOT NULL,
    stability REAL NOT NULL,    -- days until the chance of recall is down to 90 %
    difficulty REAL NOT NULL,   -- 1 to 10
    phase INTEGER NOT NULL,     -- 1 learning, 2 review, 3 relearning
    step INTEGER                -- of learning or relearning; NULL in review
)""",
)

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]


def writing(work: Work[Result]) -> Result:
    """Do `work(store)` in one transaction, which is on the disk when this returns.

    An error of `work` undoes all of it. Raises OSError, sqlite3.Error or NewerStore if the store
    cannot be written; a damaged one is renamed, and a new one is made.
    """

    def transaction(store: sqlite3.Connection) -> Result:
        with _transaction(store):
            return work(store)

    result = _on_the_store(transaction)
    for call in [*after_writing]:
        call()
    return result


after_writing: list[Callable[[], None]] = []
"""Called after each transaction of this process: pages that show the store's content."""


def reading(work: Work[Result]) -> Result:
    """Do `work(store)` for reading only; raises as `writing` does."""
    return _on_the_store(work)


def _on_the_store(work: Work[Result]) -> Result:
    try:
        found = store_path().stat().st_ino if store_path().exists() else None
        with _opened() as store:
            return work(store)
    except (sqlite3.Error, DamagedStore) as error:
        if not is_damage(error):
            raise
        _keep_aside(store_path(), found, error)
    with _opened() as store:
        return work(store)


@contextmanager
def _opened() -> Iterator[sqlite3.Connection]:
    home().mkdir(parents=True, exist_ok=True)
    opened = sqlite3.connect(store_path(), timeout=BUSY_S, isolation_level=None)
    with closing(opened) as store:
        version: int = store.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise NewerStore(version, VERSION)
        if version < VERSION:
            with _transaction(store):
                for statement in _TABLES:
                    store.execute(statement)
                store.execute(f"PRAGMA user_version = {VERSION}")
        yield store


@contextmanager
def _transaction(store: sqlite3.Connection) -> Iterator[None]:
    store.execute("BEGIN IMMEDIATE")
    try:
        yield
        store.execute("COMMIT")
    except BaseException:
        if store.in_transaction:  # some errors, such as a full disk, have ended it already
            store.execute("ROLLBACK")
        raise


def _keep_aside(path: Path, found: int | None, error: Exception) -> None:
    """Rename the store to the first free `progress.corrupt-N.sqlite3`.

    found: the file's number when it was opened. Another process may have found the same damage, and
    the store may be its fresh one by now.
    """
    if not path.exists() or path.stat().st_ino != found:
        return
    number = 1
    while (aside := path.with_name(f"progress.corrupt-{number}.sqlite3")).exists():
        number += 1
    for ending in ("-journal", "-wal", "-shm", ""):  # they would be applied to a fresh store
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    warn(
        f"{path} is damaged ({error}); it is kept as {aside.name}, and a new one begins",
        stacklevel=6,
    )
