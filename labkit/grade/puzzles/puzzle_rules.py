"""Is an answer a training step on the puzzle's stages? Work that is skipped is found here."""

from __future__ import annotations

from labkit.grade.puzzles.puzzle import Puzzle
from labkit.pipeline import Kind, Schedule, ScheduleError, validate


def require_step(schedule: Schedule, puzzle: Puzzle) -> None:
    """Raises ScheduleError, which marks the first cell that the puzzle does not allow.

    Every stage is on its rank, backwards are whole where the puzzle's are, and each microbatch goes
    once through every stage and back, in an order that does not deadlock.
    """
    placement = puzzle.problem.placement
    for rank, row in enumerate(schedule.rows):
        for index, op in enumerate(row):
            reason = None
            if 0 <= op.stage < len(placement) and placement[op.stage] != rank:
                reason = (
                    f"{op} of stage {op.stage} is on rank {rank}; here rank {placement[op.stage]} "
                    "holds that stage"
                )
            elif op.kind in (Kind.I, Kind.W) and not puzzle.problem.is_split:
                reason = f"{op} is half a backward; here it is whole, B{op.microbatch}"
            if reason is not None:
                raise ScheduleError(reason, schedule, rank, index)
    validate(schedule)
