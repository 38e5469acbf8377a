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
    with _alone_in(path.parent):
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
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; it goes with the process, however that ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
