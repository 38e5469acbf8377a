"""What can be wrong with the store, and how it is said."""

import sqlite3
import warnings
from collections.abc import Callable
from typing import TypeVar

from labkit.arguments import printable
from labkit.progress.home import store_name

Result = TypeVar("Result")


class ProgressWarning(UserWarning):
    """Progress could not be read or kept; everything else goes on."""


class DamagedStore(Exception):
    """The file is a database, and what it holds is not what labkit writes."""


class NewerStore(Exception):
    """A labkit that knows more than this one has written the file. It is left alone."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__(
            f"it is of version {version}, written by a newer labkit, and this one knows versions "
            f"up to {known}; nothing was changed. Update labkit, or set LABKIT_HOME to another "
            "folder"
        )


_NO_ROOM = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
TROUBLE = (OSError, sqlite3.Error, DamagedStore, NewerStore)


def or_warn(call: Callable[[], Result], consequence: str, otherwise: Result) -> Result:
    """What `call` returns; where the store does not let it, a ProgressWarning and `otherwise`.

    consequence: what that means for the learner, after the file's name: `could not be read, ...`.
    """
    try:
        return call()
    except TROUBLE as error:
        warn(f"{store_name()} {consequence}: {_in_words(error)}", stacklevel=4)
        return otherwise


def warn(message: str, stacklevel: int = 3) -> None:
    """A ProgressWarning. The message may have parts of an imported file."""
    warnings.warn(printable(message), ProgressWarning, stacklevel=stacklevel)


def _in_words(error: BaseException) -> str:
    """The error; SQLite calls a disk without room an I/O error, at times."""
    if _primary_code(error) in _NO_ROOM:
        return f"{error}; the disk may be full: make room, or set LABKIT_HOME to another one"
    return str(error)


def is_busy(error: BaseException) -> bool:
    """Whether another process had the store, or put a fresh one in its place: it may work now."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code == sqlite3.SQLITE_READONLY_DBMOVED or _primary_code(error) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def is_damage(error: BaseException) -> bool:
    """Whether the file itself is to blame, and no other try could succeed."""
    return isinstance(error, DamagedStore) or _primary_code(error) in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


def is_read_only(error: BaseException) -> bool:
    """Whether file or folder cannot be written, a full disk included; they may still be read."""
    return _primary_code(error) in (
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        *_NO_ROOM,
    )


def _primary_code(error: BaseException) -> int:
    # The low byte names the kind; the rest, where it is set, the circumstances.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
