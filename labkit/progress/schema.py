"""The tables, and how a store of an older version becomes one of today's.

`PRAGMA user_version` says which version a file is. 0 is the first labkit's, or an empty file: one
table of events, without names of their own. 1 gives each event a name that is the same on every
machine (`uid`), so that a store can be merged with another, and adds the states of what is
practised. 2 has the answers that checks of the first labkit would be today. All steps run in one
transaction with the new number, so that a kill in the middle, or a second process that opens the
file at the same time, finds either the old store or the new one.
"""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable

from labkit.progress.old_checks import answer_all_old_checks
from labkit.progress.trouble import NewerStore

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
