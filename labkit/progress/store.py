"""The file of the store: opened for each piece of work, and safe with several processes.

SQLite in WAL mode: readers do not wait for a writer, and a writer takes the lock before it reads
what its change depends on (BEGIN IMMEDIATE): it waits where it begins, and not in the middle, where
SQLite would send it back to the start. With synchronous=FULL a transaction that has returned is on
the disk: neither a kill nor a power cut takes it back.

An open connection must not go through a fork, and a lab forks; so none is kept. The last one to
close moves its log into the file, which waits for the disk as well. An answer took about 2 ms on a
quiet disk; beside that closing, FULL against NORMAL made no difference that could be measured.
"""

import fcntl
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar
from urllib.parse import quote

from labkit.progress import damage, schema
from labkit.progress.home import home, store_path
from labkit.progress.trouble import TROUBLE, is_busy, is_damage, is_read_only

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
            schema.require_current(store)
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
        found = damage.identity(store_path())
        try:
            with _opened() as store:
                return work(store)
        except TROUBLE as error:
            if is_busy(error) and time.monotonic() < deadline_s:
                # Some locks are not waited for by SQLite: two processes that both switch to WAL.
                time.sleep(random.uniform(0.001, 0.02))
            elif is_damage(error) and not has_made_anew:
                damage.keep_aside(store_path(), found, error)
                has_made_anew = True
            else:
                raise


@contextmanager
def _opened() -> Iterator[sqlite3.Connection]:
    home().mkdir(parents=True, exist_ok=True)
    with (
        damage.locked(home(), fcntl.LOCK_SH),
        closing(sqlite3.connect(store_path(), timeout=BUSY_S, isolation_level=None)) as store,
    ):
        store.execute("PRAGMA synchronous = FULL")
        store.execute("PRAGMA fullfsync = ON")  # macOS: through the disk's own cache, too
        schema.upgrade(store)
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
            schema.upgrade(copy)
            return copy
        except sqlite3.OperationalError as error:
            refused = error
        except BaseException:
            copy.close()
            raise
    copy.close()
    raise refused
