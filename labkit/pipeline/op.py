"""A schedule as data: for each rank the list of its operations, in order.

    rank 0   F0 F1 F2 F3             B0    B1    B2    B3
    rank 1      F0 F1 F2 F3       B0    B1    B2    B3
                                                        F3: the forward of microbatch 3

The same list is validated, simulated, executed on real ranks and drawn. It has no times. Times
follow from the order, from what each operation needs, and from how long it takes.

    F   forward of one microbatch through one stage     needs F of the stage before
    B   its whole backward: I, then W                   needs F, and B or I of the stage after
    I   only the gradient of the stage's input          the same as B
    W   only the gradients of the stage's weights       needs I

Other stages need only F and the input's gradient, from B or I: no rank waits for a W. Zero-bubble
schedules use this (Qi et al., arXiv:2401.10241).

`text` writes a schedule as a line per rank, and `parse` reads it. If ranks hold several stages, an
operation ends with its stage: `F0@2` is the forward of microbatch 0 on stage 2.

    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from numbers import Integral
from typing import Any, NamedTuple

from labkit import arguments


class Kind(StrEnum):
    """The kind of an operation: forward, or a backward whole or in halves."""

    F = "F"
    B = "B"
    I = "I"  # noqa: E741 - the letter of torch.distributed.pipelining; the paper calls it B
    W = "W"


# The result of an operation: (kind, stage, microbatch), with kind F for the output, I for the
# gradient of the input, W for those of the weights. An Op is equal to its tuple. Plain tuples are
# faster to make, and a large schedule needs half a million.
Product = tuple[Kind, int, int]


class Op(NamedTuple):
    """One operation: `kind` for `microbatch` on `stage`, all counted from 0."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """Write `F3`, without the stage, as in pictures, where the row shows the stage."""
        return f"{self.kind}{self.microbatch}"

    @property
    def product(self) -> Product:
        """The tensor that other stages need of it: for B, as for I, the input's gradient."""
        kind, stage, microbatch = self
        return (Kind.I, stage, microbatch) if kind is Kind.B else self

    def needs(self, num_stages: int) -> Product | None:
        """Return the product of another stage that this operation waits for, or None."""
        kind, stage, microbatch = self
        if kind is Kind.F:
            return (Kind.F, stage - 1, microbatch) if stage else None
        if kind is Kind.W or stage == num_stages - 1:
            return None
        return (Kind.I, stage + 1, microbatch)


def consumer(product: Product, num_stages: int) -> int | None:
    """Return the stage that waits for a product, or None if only its own stage does."""
    kind, stage, _ = product
    if kind is Kind.W:
        return None
    there = stage + 1 if kind is Kind.F else stage - 1
    return there if 0 <= there < num_stages else None


Row = Callable[..., Iterator[Op]]


@dataclass(frozen=True)
class Schedule:
    """The operations of every rank in a step. What takes a Schedule checks it: see `validate`.

    rows: rows[rank] has the operations of a rank, in order. num_stages: of the whole pipeline; a
    rank may hold several (virtual stages). Schedules compare by value.
    """

    name: str
    rows: tuple[tuple[Op, ...], ...]
    num_stages: int
    num_microbatches: int

    @property
    def num_ranks(self) -> int:
        """p: the number of ranks."""
        return len(self.rows)

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """stage -> the rank that holds it, which is the first with an operation of this stage."""
        found: dict[int, int] = {}
        for rank, row in enumerate(self.rows):
            for op in row:
                found.setdefault(op.stage, rank)
        return found

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages that a rank holds, in order."""
        return sorted(stage for stage, holder in self.rank_of.items() if holder == rank)


def plan(row: Row, num_ranks: int, num_microbatches: int, **choices: Any) -> Schedule:
    """Return the schedule whose ranks perform `row(r, num_ranks, num_microbatches, **choices)`.

    plan(one_f_one_b, 4, 8), plan(interleaved, 4, 8, virtual=2); row may be a functools.partial.
    ValueError, TypeError: for a count that is not a whole number above 0, and for a row that yields
    nothing, or anything but operations. Errors of the row itself are passed on.
    """
    arguments.whole("num_ranks", num_ranks, "1 or more")
    arguments.whole("num_microbatches", num_microbatches, "1 or more")
    function = row.func if isinstance(row, partial) else row
    name = getattr(function, "__name__", type(function).__name__)
    rows = []
    for rank in range(num_ranks):
        ops = row(rank, num_ranks, num_microbatches, **choices)
        if not isinstance(ops, Iterable):
            raise TypeError(
                f"row={name}: for rank {rank} it returned {ops!r}; yield Op(kind, stage, "
                "microbatch), or return a list of them"
            )
        rows.append(tuple(ops))
        for op in rows[-1]:
            if not _is_op(op):
                raise TypeError(
                    f"row={name}: row {rank} has {op!r}: give Op(kind, stage, microbatch), with a "
                    "Kind and two whole numbers"
                )
    if not any(rows):
        raise ValueError(f"row={name}: no rank has an operation; yield Op(kind, stage, microbatch)")
    num_stages = 1 + max(op.stage for ops in rows for op in ops)
    return Schedule(name, tuple(rows), num_stages, num_microbatches)


def require_schedule(given: object) -> None:
    """Raise unless `given` is a Schedule with rows of Ops, and its counts are 1 or more.

    `validate` says whether the Ops are a training step.
    """
    if not isinstance(given, Schedule):
        raise TypeError(
            f"schedule={given!r:.60}: give a Schedule; plan makes one from a function, parse from "
            "text"
        )
    arguments.whole("schedule.num_stages", given.num_stages, "1 or more")
    arguments.whole("schedule.num_microbatches", given.num_microbatches, "1 or more")
    rows: object = given.rows
    if not isinstance(rows, tuple | list):
        raise TypeError(f"schedule.rows={rows!r:.60}: give a tuple with one row for each rank")
    for rank, row in enumerate(rows):
        if not isinstance(row, tuple | list):
            raise TypeError(
                f"schedule.rows[{rank}]={row!r:.60}: give a tuple of Op(kind, stage, microbatch); "
                "parse reads text"
            )
        for index, op in enumerate(row):
            if not _is_op(op):
                raise TypeError(
                    f"schedule.rows[{rank}][{index}]={op!r:.60}: give Op(kind, stage, microbatch), "
                    "with a Kind and two whole numbers; parse reads text"
                )


def _is_op(op: object) -> bool:
    if not isinstance(op, Op):
        return False
    parts: tuple[Any, ...] = op
    kind, stage, microbatch = parts
    if type(kind) is Kind and type(stage) is int and type(microbatch) is int:
        return True  # fast, for half a million operations; the lines below accept numpy's numbers
    return isinstance(kind, Kind) and all(
        isinstance(each, Integral) for each in (stage, microbatch)
    )


_CELL = re.compile(r"([FBIW])(\d+)(?:@(\d+))?")


def lines(schedule: Schedule) -> list[list[str]]:
    """Return the cells of each rank as text."""
    written = cell_of(schedule)
    return [[written(op) for op in row] for row in schedule.rows]


def cell_of(schedule: Schedule) -> Callable[[Op], str]:
    """Return the function that writes an operation: `F0`, or `F0@2` if stages are not ranks.

    Errors use it, so that an operation looks the same there as in the rows.
    """
    is_plain = all(op.stage == rank for rank, row in enumerate(schedule.rows) for op in row)
    return str if is_plain else lambda op: f"{op}@{op.stage}"


def text(schedule: Schedule) -> str:
    """Return the schedule as text, a line per rank, without times. `parse` reads it."""
    require_schedule(schedule)
    return "\n".join(" ".join(row) for row in lines(schedule))


def parse(written: str | Iterable[str], name: str = "parsed") -> Schedule:
    """Read a schedule from its text or its lines. In a cell without @, the stage is the rank.

    ValueError for a cell that is no operation, TypeError for a line that is no text. `validate`
    finds operations that are missing or out of order.
    """
    lines_of = written.strip().splitlines() if isinstance(written, str) else written
    rows = list(lines_of) if isinstance(lines_of, Iterable) else [lines_of]
    if not all(isinstance(row, str) for row in rows):
        raise TypeError(f"{written!r:.60}: give text with a line per rank, such as 'F0 B0'")
    if not rows:
        raise ValueError("no lines: write one per rank, such as 'F0 B0'")
    parsed = tuple(
        tuple(_parsed_op(cell, rank) for cell in row.split()) for rank, row in enumerate(rows)
    )
    ops = [op for row in parsed for op in row]
    return Schedule(
        name,
        parsed,
        num_stages=max([len(rows), *(op.stage + 1 for op in ops)]),
        num_microbatches=max([1, *(op.microbatch + 1 for op in ops)]),
    )


def _parsed_op(cell: str, rank: int) -> Op:
    match = _CELL.fullmatch(cell)
    if match is None:
        raise ValueError(
            f"{cell[:20]!r} on rank {rank}'s line is no operation: write F, B, I or W and the "
            "microbatch, as in F0. If a rank has several stages, add the stage, as in F0@2"
        )
    kind, microbatch, stage = match.groups()
    return Op(Kind(kind), rank if stage is None else int(stage), int(microbatch))


def around(schedule: Schedule, marks: dict[int, int], most: int = 12) -> str:
    """Return the schedule as text, with one cell of each rank in `marks` in brackets.

    marks: rank -> index in its row, or the row's length to mark its end. most: how many cells of a
    row to show.
    """
    return marked(lines(schedule), marks, most)


def marked(rows: Sequence[Sequence[str]], marks: dict[int, int], most: int = 12) -> str:
    """Return rows of cells as text, marked as by `around`."""
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
