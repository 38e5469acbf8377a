"""What stands in the way of a budget: who waits for what, the longest chain, who holds much."""

from __future__ import annotations

from itertools import accumulate, groupby

from labkit.grade.puzzles.puzzle import Puzzle
from labkit.pipeline import Op, Schedule, Timing
from labkit.pipeline.text import around, cell_of

_MOST_RUNS = 6


def longest_wait(timing: Timing) -> str:
    """The rank that is idle longest in all, and its longest wait in one go."""
    idle = [timing.makespan - busy for busy in timing.busy]
    if not any(idle):
        return "no rank is ever idle"
    rank = idle.index(max(idle))
    row = timing.rows[rank]
    starts = [0.0, *(span.end for span in row)]
    ends = [*(span.start for span in row), timing.makespan]
    waits = [end - start for start, end in zip(starts, ends, strict=True)]
    index = waits.index(max(waits))
    start, end = starts[index], ends[index]
    told = f"rank {rank} is idle longest, {idle[rank]:g} of {timing.makespan:g}"
    told += f"; its longest wait is from {start:g} to {end:g}, "
    if index == len(row):
        return f"{told}after its last operation"
    op = row[index].op
    return f"{told}before {cell_of(timing.schedule)(op)}, {_reason(op, timing)}"


def _reason(op: Op, timing: Timing) -> str:
    need = op.needs(timing.schedule.num_stages)
    assert need is not None, "a rank waits for messages only"
    rank, maker = next((rank, s.op) for rank, s in timing.spans() if s.op.product == need)
    return f"for {maker} of stage {maker.stage} on rank {rank}"


def longest_chain(timing: Timing) -> str:
    """Operations of which each begins when the one before lets it, from 0 to the end of the step.

    `rank 0 F0 F1, rank 1 F1 B1, rank 0 B1`; of a long one the beginning. Only an order that
    shortens it is faster.
    """
    made = {span.op.product: (rank, span) for rank, span in timing.spans()}
    ends = {(rank, span.end): span for rank, span in timing.spans()}
    rank, span = max(timing.spans(), key=lambda each: each[1].end)
    chain = [(rank, span.op)]
    while span.start > 0:
        if (rank, span.start) in ends:
            span = ends[rank, span.start]
        else:
            need = span.op.needs(timing.schedule.num_stages)
            assert need is not None, "it begins when its message has arrived"
            rank, span = made[need]
        chain.append((rank, span.op))
    written = cell_of(timing.schedule)
    runs = [
        f"rank {rank} {' '.join(written(op) for _, op in run)}"
        for rank, run in groupby(reversed(chain), key=lambda each: each[0])
    ]
    if len(runs) > _MOST_RUNS:
        return f"{', '.join(runs[:_MOST_RUNS])}, ...: {len(runs) - 1} times from rank to rank"
    return ", ".join(runs)


def memory_by_rank(schedule: Schedule, puzzle: Puzzle) -> list[int]:
    """The most that each rank holds."""
    return [max(_held(row, puzzle)) for row in schedule.rows]


def too_much(schedule: Schedule, puzzle: Puzzle) -> str:
    """The first cell of each rank that exceeds its memory, marked in the rows."""
    marks = {}
    told = []
    written = cell_of(schedule)
    for rank, row in enumerate(schedule.rows):
        held = _held(row, puzzle)
        over = [index for index, amount in enumerate(held) if amount > puzzle.memory]
        if over:
            marks[rank] = over[0]
            told.append(
                f"rank {rank} holds {held[over[0]]} with {written(row[over[0]])}, "
                f"operation {over[0] + 1} of its row"
            )
    return f"{'; '.join(told)}; {puzzle.memory} is all there is\n{around(schedule, marks)}"


def _held(row: tuple[Op, ...], puzzle: Puzzle) -> list[int]:
    """What a rank holds after each of its operations."""
    return list(accumulate(puzzle.problem.change(op.kind, op.stage) for op in row))
