"""A damaged store is kept, under another name, and a fresh one begins."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.progress.trouble import warn

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
