"""A schedule as text, a line per rank, and back.

    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2

A stage is written where a rank holds several: `F0@2` is the forward of microbatch 0 on stage 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from labkit.pipeline.op import Kind, Op, Schedule

_CELL = re.compile(r"([FBIW])(\d+)(?:@(\d+))?")


def lines(schedule: Schedule) -> list[list[str]]:
    """The cells of each rank as text."""
    written = cell_of(schedule)
    return [[written(op) for op in row] for row in schedule.rows]


def cell_of(schedule: Schedule) -> Callable[[Op], str]:
    """How its operations are written: `F0`, or `F0@2` where a rank has another stage than its own.

    So in all that is said of a schedule an operation looks as it does in the rows.
    """
    is_plain = all(op.stage == rank for rank, row in enumerate(schedule.rows) for op in row)
    return str if is_plain else lambda op: f"{op}@{op.stage}"


def text(schedule: Schedule) -> str:
    """The schedule as text: a line per rank, without times. `parse` reads it again."""
    return "\n".join(" ".join(row) for row in lines(schedule))


def parse(written: str | Iterable[str], name: str = "parsed") -> Schedule:
    """A schedule from its text, or from its lines. Cells without a stage are of the rank's own.

    ValueError for a cell that is no operation, TypeError for what is no text. What is
    missing or out of order `validate` tells.
    """
    rows = _lines_of(written)
    if not rows:
        raise ValueError("no lines: write one per rank, such as 'F0 B0'")
    parsed = tuple(tuple(_op(cell, rank) for cell in row.split()) for rank, row in enumerate(rows))
    ops = [op for row in parsed for op in row]
    return Schedule(
        name,
        parsed,
        num_stages=max([len(rows), *(op.stage + 1 for op in ops)]),
        num_microbatches=max([1, *(op.microbatch + 1 for op in ops)]),
    )


def _lines_of(written: Any) -> list[str]:
    if isinstance(written, str):
        return written.strip().splitlines()
    rows = list(written) if isinstance(written, Iterable) else [written]
    for rank, row in enumerate(rows):
        if not isinstance(row, str):
            raise TypeError(
                f"{row!r} for rank {rank} is no line: give text with a line per rank, or a list "
                "of lines, such as ['F0 B0', 'F0 B0']"
            )
    return rows


def _op(cell: str, rank: int) -> Op:
    match = _CELL.fullmatch(cell)
    if match is None:
        raise ValueError(
            f"{cell[:20]!r} on rank {rank}'s line is no operation: write F, B, I or W and the "
            "microbatch, as in F0, and the stage after @ where a rank has several, as in F0@2"
        )
    kind, microbatch, stage = match.groups()
    return Op(Kind(kind), rank if stage is None else int(stage), int(microbatch))


def around(schedule: Schedule, marks: dict[int, int], most: int = 12) -> str:
    """The schedule as text with one cell per marked rank in brackets; long rows are shortened.

    marks: rank -> index in its row; the row's length marks its end, where something is missing.
    """
    return marked(lines(schedule), marks, most)


def marked(rows: Sequence[Sequence[str]], marks: dict[int, int], most: int = 12) -> str:
    """As `around`, of the cells of each rank."""
    centre = next(iter(marks.values()), 0)
    start = max(0, min(centre - most // 2, max(map(len, rows)) - most))
    shown = []
    for rank, row in enumerate(rows):
        cells = [f" {cell} " for cell in row] + ["   "]
        if rank in marks:
            cells[marks[rank]] = f"[{cells[marks[rank]].strip() or '...'}]"
        window = cells[start : start + most + 1]
        shown.append([" ..." if start else "", *window, "..." if len(row) > start + most else ""])
    widths = [max(map(len, column)) for column in zip(*_padded(shown))]
    return "\n".join(
        f"rank {rank} " + "".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for rank, row in enumerate(_padded(shown))
    )


def _padded(rows: list[list[str]]) -> list[list[str]]:
    longest = max(map(len, rows))
    return [row[:-1] + [""] * (longest - len(row)) + row[-1:] for row in rows]
