"""A text file that is written whole or not at all: a backup must not be half of one.

file, or a link to it     written beside it under another name, flushed, and renamed over it
pipe, device              written into: to rename over it would take it away from everybody
folder                    refused, and so is the empty name, which means the folder one is in
"""

import errno
import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Make `text` what stands at `path`. A file that was there keeps its owner and its mode.

    Raises OSError where it cannot be written; `strerror` says why. A file that was there is as
    before then.
    """
    try:
        there = path.stat()  # of what a link leads to
    except FileNotFoundError:
        there = None
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(
            errno.EISDIR, "it is a folder, as the empty name is; name a file in it", str(path)
        )
    if there is None or stat.S_ISREG(there.st_mode):
        _replace(path.resolve(), there, text)
    else:
        path.write_text(text, encoding="utf-8", newline="\n")


def _replace(path: Path, there: os.stat_result | None, text: str) -> None:
    """path: without links, so that the rename puts the file where a link leads to."""
    beside = path.with_name(f".labkit-{uuid.uuid4().hex}")
    try:
        with beside.open("x", encoding="utf-8", newline="\n") as file:
            if there is not None:
                with suppress(PermissionError):  # another user's file, and not root
                    os.fchown(file.fileno(), there.st_uid, there.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(there.st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
