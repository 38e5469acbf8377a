"""The time, the learner's calendar days, the folder of progress, and warnings about it.

This room takes the time from here only. `home` is the folder in which labkit stores a learner's
progress. `or_warn` turns problems of the store into a ProgressWarning.
"""

import os
import sqlite3
import time
import warnings
from collections.abc import Callable
from datetime import date, datetime, tzinfo
from pathlib import Path
from typing import TypeVar

from labkit.arguments import printable

# Times of events: from 1970 to the year 9000, so that no interval leads past the calendar's end.
EARLIEST_S, LATEST_S = 0.0, 2.2e11


def now_s() -> float:
    """Return seconds since 1970, for all of this room."""
    return time.time()


def check_time(at_s: float) -> float:
    """Return `at_s` as a float. Raises ValueError unless it is a time that a calendar can hold."""
    if not EARLIEST_S <= at_s < LATEST_S:  # not a number is neither
        raise ValueError(
            f"at_s={at_s} is no time of an event; give seconds since 1970, such as time.time()"
        )
    return float(at_s)


def day_of(at_s: float, zone: tzinfo | None = None) -> date:
    """Return the day on the learner's calendar; `zone` None is this machine's.

    It is read from the calendar, since days on which clocks change have 23 or 25 hours.
    """
    return moment_of(at_s, zone).date()


def moment_of(at_s: float, zone: tzinfo | None = None) -> datetime:
    """Return day and time on the learner's calendar."""
    return datetime.fromtimestamp(at_s, zone)


def home() -> Path:
    """Return the folder of labkit's stored progress: `$LABKIT_HOME`, or this system's place.

    It need not exist yet. It belongs on a disk of this machine, since SQLite's locks often do not
    work on a network file system. Raises OSError if the variable names the home of an unknown
    user.
    """
    chosen = os.environ.get("LABKIT_HOME")
    if chosen:
        try:
            return Path(chosen).expanduser()
        except RuntimeError as error:
            raise OSError(f"LABKIT_HOME={chosen}: {error}; name a folder") from error
    try:
        import platformdirs  # part of the lab, not of what a rank needs
    except ImportError:
        return Path.home() / ".labkit"
    return Path(platformdirs.user_data_dir("labkit", appauthor=False))


def store_path() -> Path:
    """Return the path of the store's file."""
    return home() / "progress.sqlite3"


def store_name() -> str:
    """Return the store's path for a message, even if there can be none."""
    try:
        return str(store_path())
    except OSError:
        return "the progress store"


Result = TypeVar("Result")


class ProgressWarning(UserWarning):
    """Progress could not be read or kept; everything else goes on."""


class DamagedStore(Exception):
    """The file is a database, but its content is not labkit's."""


class NewerStore(Exception):
    """A newer labkit has written the file, which is left alone."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__(
            f"it is of version {version}, written by a newer labkit, and this one knows versions "
            f"up to {known}; nothing was changed. Update labkit, or set LABKIT_HOME to another "
            "folder"
        )


TROUBLE = (OSError, sqlite3.Error, DamagedStore, NewerStore)


def or_warn(call: Callable[[], Result], consequence: str, otherwise: Result) -> Result:
    """Return what `call` returns. If the store refuses, warn and return `otherwise`.

    consequence: the end of the warning, after the file's name: `could not be read, ...`.
    """
    try:
        return call()
    except TROUBLE as error:
        warn(f"{store_name()} {consequence}: {error}", stacklevel=4)
        return otherwise


def warn(message: str, stacklevel: int = 3) -> None:
    """Give a ProgressWarning. The message may have parts of an imported file."""
    warnings.warn(printable(message), ProgressWarning, stacklevel=stacklevel)


def is_damage(error: BaseException) -> bool:
    """Return whether the file itself is to blame, and no other try could succeed."""
    # The low byte is the kind; the other bytes, if set, are the circumstances.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, DamagedStore) or code in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )
