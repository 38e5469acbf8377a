"""Drawings of pipeline schedules: which operation runs on which rank in which slot.

             1   2   3   4   5   6   7   8   9  10
    rank 0  F0  F1   -   -  B0  B1                       a cell is one slot: F, B, I or W and a
    rank 1   -  F0  F1  B0  B1                           microbatch; F0@2 names the stage

Every operation takes one slot, and a message none. A row must have the operations of the schedule
that is asked for in its order, each as early as it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from labkit.interview.draw.drawing import Cells, Drawing, Fault
from labkit.pipeline import Costs, Schedule, simulate
from labkit.pipeline.op import cell_of, plan
from labkit.pipeline.schedules import gpipe, interleaved, one_f_one_b, zero_bubble_h1

_SLOTS = Costs(forward=1, input_gradient=1, weight_gradient=0)
_SPLIT = Costs(forward=1, input_gradient=1, weight_gradient=1)


def _slots(schedule: Schedule, costs: Costs) -> list[list[str]]:
    """Return the schedule in time, a cell for each slot."""
    timing, cell = simulate(schedule, costs), cell_of(schedule)
    rows = [[""] * round(timing.makespan) for _ in timing.rows]
    for row, spans in zip(rows, timing.rows, strict=True):
        for span in spans:
            row[round(span.start)] = cell(span.op)
    return rows


def _replayed(expected: Cells, cells: Cells) -> None:
    """Compare slot by slot, so that the first wrong slot is the one to repair."""
    for slot in range(len(expected[0])):
        for rank, row in enumerate(expected):
            wanted, found = row[slot], cells[rank][slot].upper()
            if wanted == found:
                continue
            raise Fault(rank, slot, _reason(found, row, slot))


def _reason(found: str, row: Sequence[str], slot: int) -> str:
    """Say why a rank, whose operations are `row`, does not run `found` in this slot."""
    if not found:
        return "it could work in this slot, and is idle"
    if found not in row:
        return f"{found} is no operation of this rank"
    if found in row[:slot]:
        return f"{found} ran before"
    following = next(each for each in row[slot:] if each)
    if found == following:
        return f"{found} has to wait: what it needs is not there yet"
    return f"in this schedule {found} does not come next on this rank"


def _drawing(
    name: str, title: str, topic: str, schedule: Schedule, costs: Costs, hint: str
) -> Drawing:
    cells = _slots(schedule, costs)
    kinds = "F, I and W" if costs is _SPLIT else "F and B"
    stage = "; F0@2 is F0 of stage 2" if "@" in cells[0][0] else ""
    return Drawing(
        name,
        f"{title}: {len(cells)} ranks, {schedule.num_microbatches} microbatches",
        topic,
        f"Each of {kinds} takes one slot, a message none. Write F0 into the slot in which "
        f"microbatch 0 runs forward{stage}. Leave a slot empty in which the rank is idle.",
        hint,
        tuple(f"rank {rank}" for rank in range(len(cells))),
        tuple(str(slot) for slot in range(1, len(cells[0]) + 1)),
        cells,
        partial(_replayed, cells),
        column_word="slot ",
    )


def drawings() -> list[Drawing]:
    """Return the drawings of schedules."""
    return [
        _drawing(
            "gpipe-3x4",
            "GPipe",
            "pp-1",
            plan(gpipe, 3, 4),
            _SLOTS,
            "Rank r begins r slots late. All forwards, then all backwards, which begin on the last "
            "rank.",
        ),
        _drawing(
            "1f1b-3x4",
            "1F1B",
            "pp-3",
            plan(one_f_one_b, 3, 4),
            _SLOTS,
            "Rank r runs p - r forwards, or all of them, before its first backward; then one "
            "backward before each forward. So at most p - r microbatches are in flight on it.",
        ),
        _drawing(
            "1f1b-4x6",
            "1F1B",
            "pp-3",
            plan(one_f_one_b, 4, 6),
            _SLOTS,
            "Rank r runs p - r forwards before its first backward; then one backward before each "
            "forward.",
        ),
        _drawing(
            "interleaved-2x4",
            "Interleaved 1F1B with two stages on each rank",
            "pp-4",
            plan(interleaved, 2, 4, virtual=2),
            _SLOTS,
            "Microbatches come in groups of p: a rank runs the group through its first stage, then "
            "through its second.",
        ),
        _drawing(
            "zero-bubble-3x4",
            "ZB-H1, backward in two",
            "pp-6",
            plan(zero_bubble_h1, 3, 4),
            _SPLIT,
            "I, the gradient of the input, runs as early as it can, since the rank before waits "
            "for it. W fills the slots in which the rank would be idle.",
        ),
    ]
