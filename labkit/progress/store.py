"""The file of the store: opened for each piece of work, and safe with several processes.

SQLite in WAL mode: readers do not wait for a writer, and a writer takes the lock before it reads
what its change depends on (BEGIN IMMEDIATE): it waits where it begins, and not in the middle, where
SQLite would send it back to the start. With synchronous=FULL a transaction that has returned is on
the disk: neither a kill nor a power cut takes it back.

An open connection must not go through a fork, and a lab forks; so none is kept. The last one to
close moves its log into the file, which waits for the disk as well. An answer took about 2 ms on a
quiet disk; beside that closing, FULL against NORMAL made no difference that could be measured.

The tables, and how a store of an older version becomes one of today's.

`PRAGMA user_version` says which version a file is. 0 is the first labkit's, or an empty file: one
table of events, without names of their own. 1 gives each event a name that is the same on every
machine (`uid`), so that a store can be merged with another, and adds the states of what is
practised. 2 has the answers that checks of the first labkit would be today. All steps run in one
transaction with the new number, so that a kill in the middle, or a second process that opens the
file at the same time, finds either the old store or the new one.

A damaged store is kept, under another name, and a fresh one begins.
"""

import fcntl
import hashlib
import json
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from labkit.progress.clock import (
    TROUBLE,
    NewerStore,
    home,
    is_busy,
    is_damage,
    is_read_only,
    store_path,
    warn,
)
from labkit.progress.old_checks import answer_all_old_checks

# The default of `uid` is for processes of the first labkit that write to a store of today's.
_EVENTS = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    uid TEXT NOT NULL UNIQUE DEFAULT (lower(hex(randomblob(16)))),
    at_s REAL NOT NULL,         -- seconds since 1970
    kind TEXT NOT NULL,         -- check, hint, prediction, answer, scheduler, ...
    subject TEXT NOT NULL,      -- the exercise, the card, or whatever else the event is about
    detail TEXT NOT NULL        -- JSON object
)"""
_INDEX = "CREATE INDEX events_by_subject ON events (subject, kind)"
# What follows from the answers among the events: it can be thrown away and made again.
_STATES = """
CREATE TABLE states (
    subject TEXT PRIMARY KEY,
    num_answers INTEGER NOT NULL,
    last_uid TEXT NOT NULL,     -- of the latest answer
    last_s REAL NOT NULL,       -- when that was
    due_s REAL NOT NULL,
    stability REAL NOT NULL,    -- days until the chance of recall is down to 90 %
    difficulty REAL NOT NULL,   -- 1 to 10
    phase INTEGER NOT NULL,     -- 1 learning, 2 review, 3 relearning
    step INTEGER                -- of learning or relearning; NULL in review
)"""


def upgrade(store: sqlite3.Connection) -> None:
    """Make an open store one of today's version. Raises NewerStore, and changes nothing then."""
    if _checked_version(store) == VERSION:
        return
    store.execute("PRAGMA journal_mode = WAL")  # kept in the file; impossible in a transaction
    store.execute("BEGIN IMMEDIATE")
    try:
        for step in STEPS[_checked_version(store) :]:  # another process may have been faster
            step(store)
        store.execute(f"PRAGMA user_version = {VERSION}")
        store.execute("COMMIT")
    except BaseException:
        if store.in_transaction:
            store.execute("ROLLBACK")
        raise


def require_current(store: sqlite3.Connection) -> None:
    """Within a transaction: raises NewerStore if another process has upgraded the store since."""
    _checked_version(store)


def _checked_version(store: sqlite3.Connection) -> int:
    version: int = store.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise NewerStore(version, VERSION)
    return version


def _name_events(store: sqlite3.Connection) -> None:
    """0 to 1. Names come from the content: two copies of an old store give an event one name."""
    old = "SELECT id, at_s, kind, subject, detail FROM old_events ORDER BY id"
    tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'events'"
    is_fresh = store.execute(tables).fetchone() is None
    if not is_fresh:
        store.execute("ALTER TABLE events RENAME TO old_events")
    store.execute(_EVENTS)
    store.execute(_INDEX)
    store.execute(_STATES)
    if not is_fresh:
        seen: Counter[str] = Counter()
        for number, *row in store.execute(old):
            content = json.dumps(row)
            seen[content] += 1  # the same thing at the same time, twice, is two events
            name = hashlib.sha256(f"{seen[content]} {content}".encode()).hexdigest()[:32]
            store.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (number, name, *row))
        store.execute("DROP TABLE old_events")


# STEPS[n] leads from version n to n + 1.
STEPS: tuple[Callable[[sqlite3.Connection], None], ...] = (_name_events, answer_all_old_checks)
VERSION = len(STEPS)


# They belong to their store: SQLite would apply them to a fresh one of that name, and spoil it too.
_BESIDE = ("-journal", "-wal", "-shm")


def identity(path: Path) -> tuple[int, int] | None:
    """Which file this is, whatever it is called; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def keep_aside(path: Path, damaged: tuple[int, int] | None, error: Exception) -> None:
    """Rename the store to the first free `progress.corrupt-N.sqlite3`.

    damaged: its identity when it was opened. Two processes may find the same damage; by the time
    the second one comes here, `path` may be the first one's fresh store, which must stay.
    """
    with locked(path.parent, fcntl.LOCK_EX):
        if damaged is None or identity(path) != damaged:
            return
        number = 1
        while (aside := path.with_name(f"progress.corrupt-{number}.sqlite3")).exists():
            number += 1
        for ending in _BESIDE:  # first: killed after this line, the damage is merely found again
            with suppress(OSError):
                os.replace(path.with_name(path.name + ending), aside.with_name(aside.name + ending))
        with suppress(OSError):  # a folder that is read-only: the caller's next try says so
            os.replace(path, aside)
            warn(
                f"{path} is damaged ({error}); it is kept as {aside.name}, and a new one begins",
                stacklevel=6,
            )


@contextmanager
def locked(folder: Path, kind: int) -> Iterator[None]:
    """Hold the folder's lock; it goes with the process, however that ends.

    LOCK_SH while a store is open, LOCK_EX to rename one. SQLite finds a store's log by its name: a
    connection to a store that was renamed would take the fresh one's log for its own, and delete
    it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]

BUSY_S = 5.0  # how long one process waits for others


def writing(work: Work[Result]) -> Result:
    """`work(store)` in one transaction, which is on the disk when this returns.

    What `work` raises undoes all of it. Raises OSError, sqlite3.Error or NewerStore where the store
    cannot be written; a damaged one is kept aside, and a fresh one begun.
    """

    def transaction(store: sqlite3.Connection) -> Result:
        store.execute("BEGIN IMMEDIATE")
        try:
            require_current(store)
            result = work(store)
            store.execute("COMMIT")
        except BaseException:
            if store.in_transaction:  # some errors, such as a full disk, have ended it already
                store.execute("ROLLBACK")
            raise
        return result

    return _on_the_store(transaction)


def reading(work: Work[Result]) -> Result:
    """`work(store)` on what the store holds; raises as `writing` does.

    A store that may not be written is read all the same, through a copy in memory.
    """
    try:
        return _on_the_store(work)
    except sqlite3.OperationalError as error:
        if not (is_read_only(error) and store_path().is_file()):
            raise
    with closing(_copy_in_memory()) as copy:
        return work(copy)


def _on_the_store(work: Work[Result]) -> Result:
    deadline_s = time.monotonic() + BUSY_S
    has_made_anew = False
    while True:
        found = identity(store_path())
        try:
            with _opened() as store:
                return work(store)
        except TROUBLE as error:
            if is_busy(error) and time.monotonic() < deadline_s:
                # Some locks are not waited for by SQLite: two processes that both switch to WAL.
                time.sleep(random.uniform(0.001, 0.02))
            elif is_damage(error) and not has_made_anew:
                keep_aside(store_path(), found, error)
                has_made_anew = True
            else:
                raise


@contextmanager
def _opened() -> Iterator[sqlite3.Connection]:
    home().mkdir(parents=True, exist_ok=True)
    with (
        locked(home(), fcntl.LOCK_SH),
        closing(sqlite3.connect(store_path(), timeout=BUSY_S, isolation_level=None)) as store,
    ):
        store.execute("PRAGMA synchronous = FULL")
        store.execute("PRAGMA fullfsync = ON")  # macOS: through the disk's own cache, too
        upgrade(store)
        yield store


def _copy_in_memory() -> sqlite3.Connection:
    """Today's version of a store that cannot be written, for reading.

    Where its log is there, the log counts, too; a folder in which SQLite may not even create the
    index of that log can only be read as if nobody wrote (`immutable`), and that without a log.
    """
    copy = sqlite3.connect(":memory:", isolation_level=None)
    name = quote(str(store_path().resolve()))
    for options in ("mode=ro", "mode=ro&immutable=1"):
        try:
            with closing(sqlite3.connect(f"file:{name}?{options}", uri=True)) as original:
                original.backup(copy)
            upgrade(copy)
            return copy
        except sqlite3.OperationalError as error:
            refused = error
        except BaseException:
            copy.close()
            raise
    copy.close()
    raise refused
