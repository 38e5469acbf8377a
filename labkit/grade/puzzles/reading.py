"""What a player hands in, read into a Schedule of plain operations, and nothing else.

Only rows are taken from an answer. How many stages and microbatches there are is the puzzle's, and
when things happen is computed, so there is nothing in an answer that could be believed.
"""

from __future__ import annotations

from typing import Any

from labkit.grade.puzzles.puzzle import Puzzle
from labkit.pipeline import Kind, Op, Schedule, parse

MOST_CHARACTERS = 10_000
_LONGEST_CELL = 12


class Unreadable(ValueError):
    """The answer is no list of operations for the puzzle's ranks. The message says why."""


def is_blank(answer: object) -> bool:
    """Whether nothing was written at all."""
    return answer is None or (isinstance(answer, str) and not str.strip(answer))


def read(answer: Any, puzzle: Puzzle) -> Schedule:
    """The answer's rows as a Schedule for the puzzle. Raises Unreadable.

    answer: text with a line per rank, a list of such lines or of lists of cells, or a Schedule, as
    `plan` makes it.
    """
    rows = _rows_of(answer) if type(answer) is Schedule else _parsed(_text_of(answer))
    num_ranks = puzzle.problem.num_ranks
    if len(rows) != num_ranks:
        raise Unreadable(f"{_counted(len(rows), 'row')} for {num_ranks} ranks: write one for each")
    stages, microbatches = puzzle.problem.num_stages, puzzle.problem.num_microbatches
    return Schedule("answer", rows, stages, microbatches)


def _text_of(answer: Any) -> str:
    # Exact types: a subclass could show one text here and another there.
    if type(answer) in (list, tuple):
        lines = [_line_of(row) for row in answer]
        if all(type(line) is str for line in lines):
            answer = "\n".join(lines)
    if type(answer) is not str:
        raise Unreadable(
            f"a {type(answer).__name__} is no answer: give text with a line per rank, a "
            "list of lines or of lists of cells, or a Schedule of labkit.pipeline"
        )
    if len(answer) > MOST_CHARACTERS:
        raise Unreadable(
            f"{len(answer):,} characters: no order of this puzzle needs more than "
            f"{MOST_CHARACTERS:,}"
        )
    return answer


def _line_of(row: Any) -> Any:
    """A list of cells as a line; all else as it is."""
    if type(row) in (list, tuple) and all(type(cell) is str for cell in row):
        return " ".join(row)
    return row


def _parsed(text: str) -> tuple[tuple[Op, ...], ...]:
    for rank, line in enumerate(text.strip().splitlines()):
        for cell in line.split():
            if len(cell) > _LONGEST_CELL:
                raise Unreadable(
                    f"{cell[:_LONGEST_CELL]}... on rank {rank}'s line is no operation: write a "
                    "letter and a number, as in F0"
                )
    try:
        return parse(text).rows
    except ValueError as error:
        raise Unreadable(str(error)) from None


def _rows_of(schedule: Schedule) -> tuple[tuple[Op, ...], ...]:
    """Operations anew from a Schedule's rows, each part of exactly the type that it must have."""
    rows = schedule.rows
    if type(rows) not in (tuple, list) or any(type(row) not in (tuple, list) for row in rows):
        raise Unreadable("the Schedule's rows are no tuples of operations")
    if sum(map(len, rows)) > MOST_CHARACTERS:
        raise Unreadable(f"{sum(map(len, rows)):,} operations: no order of this puzzle has as many")
    return tuple(tuple(_op(op, rank) for op in row) for rank, row in enumerate(rows))


def _op(op: Any, rank: int) -> Op:
    if type(op) in (Op, tuple) and len(op) == 3:
        kind, stage, microbatch = op
        if type(kind) is Kind and type(stage) is int and type(microbatch) is int:
            return Op(kind, stage, microbatch)
    raise Unreadable(
        f"row {rank} of the Schedule has something that is no operation: Op(kind, stage, "
        "microbatch), with a Kind and two whole numbers"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
