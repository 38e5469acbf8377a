"""The folder of a run, and those of its attempts in it."""

from __future__ import annotations

import os
import re
import reprlib
from pathlib import Path

_NUMBER = "(0|[1-9][0-9]*)"  # as labkit writes it: no other digits, no zeros before it


def attempts(path: Path) -> list[int]:
    """The numbers of the attempts in a folder, in order."""
    if not os.path.isdir(path):  # False, and no error, for a name that nothing can have
        return []
    found = (each for each in numbered(path, "attempt-*") if each.is_dir())
    return sorted(int(each.name.removeprefix("attempt-")) for each in found)


def numbered(folder: Path, pattern: str) -> list[Path]:
    """What is in a folder whose name is `pattern` with a number for its *: nobody else's files."""
    known = re.compile(re.escape(pattern).replace(r"\*", _NUMBER))
    return [each for each in sorted(folder.iterdir()) if known.fullmatch(each.name)]


def folder_of(path: Path, attempt: int) -> Path:
    """Where the files of one attempt are."""
    return path / f"attempt-{attempt}"


def named_folder(path: object) -> Path:
    """What a caller has named. TypeError for what is no name."""
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    several = "; several folders are given one by one: Run.load(*folders)"
    advice = "give the name of a folder, such as 'runs/first'"
    advice += several if isinstance(path, (list, tuple)) else ""
    raise TypeError(f"path={reprlib.repr(path)}: {advice}")
