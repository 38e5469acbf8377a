"""A drawing: a grid to fill, and the first cell of it that is wrong.

               step 1    step 2    step 3
    rank 0     1:0       1:2       1:1             rank 0 sends chunk 0 to rank 1
    rank 1     2:1       2:0       2:2
    rank 2     0:2       0:1       0:0

    drawing = get_drawing("ring-3")
    drawing.rule(cells)             a Ruling: right, or the first wrong cell and why
    drawing.answer                  cells that are right; others may be, too

What was drawn is replayed: any order that does the work within the columns passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit import progress
from labkit.arguments import UserError

_NAMED = re.compile(r"rank \d+\s*\|(.*)")
Cells = Sequence[Sequence[str]]
"""By row, by column: what is written there; "" for nothing."""


class Fault(Exception):
    """A cell that is wrong: its row, its column and the reason."""

    def __init__(self, row: int, column: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.column, self.reason = row, column, reason


class Ruling(NamedTuple):
    """The ruling on a drawing."""

    is_right: bool
    text: str
    place: tuple[int, int] | None = None
    """Row and column of the first cell that is wrong, from 0."""


@dataclass(frozen=True)
class Drawing:
    """A grid to fill."""

    name: str
    title: str
    topic: str
    prompt: str
    """The task, and how a cell is written."""
    hint: str
    """The invariant: what is true after each step."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    answer: Cells
    replay: Callable[[Cells], None]
    """Raises Fault for the first cell that is wrong."""
    column_word: str = ""
    """Before a column's heading where a ruling names it."""

    @property
    def empty(self) -> list[list[str]]:
        """The grid before anything is written."""
        return [[""] * len(self.columns) for _ in self.rows]

    def rule(self, cells: Cells, *, keep: bool = True) -> Ruling:
        """Rule on a drawing; the outcome is stored unless keep is False.

        Raises ValueError for a grid of another size.
        """
        if [len(row) for row in cells] != [len(self.columns)] * len(self.rows):
            sizes = ", ".join(str(len(row)) for row in cells) or "none"
            raise ValueError(
                f"{self.name} has {len(self.rows)} rows of {len(self.columns)} cells; this has "
                f"{len(cells)} rows, of {sizes} cells. Write - for an empty cell"
            )
        plain = [["" if cell.strip() == "-" else cell.strip() for cell in row] for row in cells]
        ruling = Ruling(True, "Right.")
        try:
            self.replay(plain)
        except Fault as fault:
            where = f"{self.rows[fault.row]}, {self.column_word}{self.columns[fault.column]}"
            ruling = Ruling(False, f"{where}: {fault.reason}", (fault.row, fault.column))
        if keep:
            progress.record("drawing", self.name, outcome="passed" if ruling.is_right else "wrong")
        return ruling

    def text_of(self, cells: Cells) -> str:
        """Write the grid with its headings, columns aligned. `read_cells` reads it."""
        lines = [["", *self.columns]]
        lines += [[name, *(cell or "-" for cell in row)] for name, row in zip(self.rows, cells)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            " | ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
            for line in lines
        )


class UnknownDrawing(UserError, LookupError):
    """No drawing has that name. The message lists near ones."""


def read_cells(text: str) -> list[list[str]]:
    """Read a grid: a line per row, cells apart by `|` where there is one, else by spaces.

    `-` is an empty cell. Where lines begin with the names of rows, `rank 0 |`, as in a task that
    `labkit draw` has printed into a file, all other lines are left out; else those with a #.
    """
    lines = [line.strip() for line in text.splitlines()]
    named = [match[1] for line in lines if (match := _NAMED.match(line))]
    return [
        [cell.strip() for cell in (line.split("|") if "|" in line else line.split())]
        for line in named or lines
        if line and not line.startswith("#")
    ]
