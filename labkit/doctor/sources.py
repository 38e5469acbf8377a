"""Names and texts of source lines, notebook cells included.

A function defined in a cell has a file name such as /tmp/ipykernel_71/330482.py, which exists only
in the kernel's line cache. The text travels to the ranks, so that their tracebacks show it, and the
name is shown to the reader as `cell 7`.
"""

import linecache
import os
import re
import sys

from labkit.comm import Site
from labkit.comm.callers import MACHINERY


def texts_of_cells() -> dict[str, list[str]]:
    """The lines of every source that is in the line cache but not on disk, by file name."""
    # (size, mtime, lines, name): mtime is None for text that no file stands behind.
    entries = [(name, entry) for name, entry in linecache.cache.items() if len(entry) == 4]
    return {name: list(entry[2]) for name, entry in entries if entry[1] is None}


def remember(texts: dict[str, list[str]]) -> None:
    """Enter cells' lines into this process's line cache."""
    for name, lines in texts.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def name_of_cell(number: int) -> str:
    """The file name of a cell that a session runs on its ranks."""
    return f"<cell {number}>"


def cell_number(file: str) -> int | None:
    """The execution count of the notebook cell behind `file`; None where it is not a cell."""
    if of_session := _CELL.fullmatch(file):
        return int(of_session[1])
    # IPython is asked only where it is running already: this room must not import it.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return None
    return getattr(shell.compile, "_filename_map", {}).get(file)


def place(site: Site) -> str:
    """Where a line is, in short: `cell 7, line 12` or `ring.py, line 40`."""
    number = cell_number(site.file)
    file = os.path.basename(site.file) if number is None else f"cell {number}"
    return f"{file}, line {site.line}"


_CELL = re.compile(r"<cell (\d+)>")
_FILE = re.compile(r'File "([^"]+)", line (\d+)')


def with_cells_named(text: str) -> str:
    """A traceback or stack in which cells are called by their number.

    Files of labkit and torch lose what is in front of the package's name: it says nothing.
    """

    def name(match: re.Match[str]) -> str:
        number = cell_number(match[1])
        if number is not None:
            return f"Cell {number}, line {match[2]}"
        for folder in MACHINERY:
            if match[1].startswith(folder):
                package = os.path.basename(folder.rstrip(os.sep))
                return f'File "{package}/{match[1].removeprefix(folder)}", line {match[2]}'
        return match[0]

    return _FILE.sub(name, text)
