"""Rows as they came back, read: lists of cells such as "F0", or why they are none."""

import re
from collections.abc import Sequence
from typing import Any

from labkit.comm.words import listed
from labkit.grade.graders.schedule_pipelines import Pipeline, Row
from labkit.grade.outcome import Finding, Outcome
from labkit.pipeline import Kind, Op, Schedule

_CELL = re.compile(r"([FBIW])([0-9]{1,6})(?:@([0-9]{1,6}))?")
_BELOW_0 = re.compile(r"[FBIW]-[0-9]{1,6}(?:@[0-9]{1,6})?")
_IDLE = re.compile(r"[\s._\-]*|idle|none|wait", re.IGNORECASE)


def wrong_form(
    row: Row, answer: Any, call: str, kinds: Sequence[Kind], names_stages: bool
) -> Finding | None:
    """An answer that is no list of operations of these kinds."""
    example = f"F0@{row.pipeline.num_ranks}" if names_stages else "F0"
    if not isinstance(answer, list | tuple):
        what = f"a list of cells such as {example!r}, or a generator of them"
        return _wrong(
            "returns something else",
            f"what came back is {_told(answer)}; it should be {what}",
            call,
        )
    if len(answer) == row.pipeline.num_ranks and all(map(_is_row, answer)):
        return _wrong(
            "returns the rows of all ranks",
            f"what came back is {len(answer)} lists of cells, as many as there are ranks. Asked "
            f"for is the row of rank {row.rank} only: a list of cells such as {example!r}",
            call,
        )
    for index, cell in enumerate(answer):
        if finding := _below_0(row.pipeline, index, cell):
            return _wrong(*finding, call)
        if finding := _wrong_cell(index, cell, example, kinds, names_stages):
            return _wrong(*finding, call)
    return None


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(cell, str) for cell in value)


def _below_0(pipeline: Pipeline, index: int, cell: Any) -> tuple[str, str] | None:
    if not isinstance(cell, str) or _BELOW_0.fullmatch(cell) is None:
        return None
    few = (
        ". There may be fewer microbatches than ranks, as here: then a rank begins with no more "
        "forwards than there are, and counting back from m stops at 0"
    )
    return (
        "a microbatch before the first",
        f"cell {index} is {_told(cell)}, and microbatches are counted from 0"
        + few * (pipeline.num_microbatches < pipeline.num_ranks),
    )


def _wrong_cell(
    index: int, cell: Any, example: str, kinds: Sequence[Kind], names_stages: bool
) -> tuple[str, str] | None:
    if cell is None or (isinstance(cell, str) and _IDLE.fullmatch(cell)):
        return (
            "writes down when it waits",
            f"cell {index} is {_told(cell)}, and a row has no times: it is the order of what the "
            "rank does. Where it waits follows from what it waits for, and from how long things "
            "take",
        )
    match = _CELL.fullmatch(cell) if isinstance(cell, str) else None
    letters = listed([str(kind) for kind in kinds])
    if match is None:
        return (
            "returns something else",
            f"cell {index} is {_told(cell)}; a cell is {letters} with the number of a microbatch, "
            f"as text: {example!r}",
        )
    if match[1] not in kinds:
        return (
            "an operation of another kind",
            f"cell {index} is {_told(cell)}; this schedule is made of {letters}",
        )
    if names_stages and match[3] is None:
        return (
            "cells without a stage",
            f"cell {index} is {_told(cell)}: the rank holds several stages, so a cell names its "
            f"own: {example!r}",
        )
    return None


def schedule_of(pipeline: Pipeline, answers: Sequence[Sequence[str]], name: str) -> Schedule:
    """From the cells of all ranks, which are of the right form."""
    rows = tuple(tuple(_op(cell, rank) for cell in cells) for rank, cells in enumerate(answers))
    return Schedule(name, rows, pipeline.num_stages, pipeline.num_microbatches)


def _op(cell: str, rank: int) -> Op:
    match = _CELL.fullmatch(cell)
    assert match is not None
    kind, microbatch, stage = match.groups()
    return Op(Kind(kind), rank if stage is None else int(stage), int(microbatch))


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _wrong(name: str, explanation: str, seen: str) -> Finding:
    return Finding(Outcome.WRONG, name, explanation, first_seen=seen, hint=3)
