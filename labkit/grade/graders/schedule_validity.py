"""A schedule that is no training step: which rule it breaks, and the grid with its cell."""

import re

from labkit.grade.graders.schedule_pipelines import Pipeline
from labkit.grade.outcome import Finding, Outcome
from labkit.pipeline import Kind, Op, Schedule, ScheduleError, validate
from labkit.pipeline.text import around


def invalid(pipeline: Pipeline, schedule: Schedule) -> Finding | None:
    """The first cell that cannot be, is missing, or is never reached."""
    error = _misplaced(pipeline, schedule)
    try:
        if error is None:
            validate(schedule)
            return None
    except ScheduleError as found:
        error = found
    name, explanation = _rule(schedule, error)
    reason = error.reason
    if all(op.kind in (Kind.F, Kind.B) for row in schedule.rows for op in row):
        reason = re.sub(r"(B\d+) or I\d+", r"\1", reason)  # nobody here has split a backward
    return Finding(
        Outcome.WRONG,
        name,
        explanation,
        first_seen=f"{pipeline}: {reason}",
        hint=3,
        picture=around(schedule, {error.rank: error.index}),
    )


def _misplaced(pipeline: Pipeline, schedule: Schedule) -> ScheduleError | None:
    """A stage that is there, and another rank's."""
    p = pipeline.num_ranks
    for rank, row in enumerate(schedule.rows):
        for index, op in enumerate(row):
            if op.stage % p != rank and op.stage < pipeline.num_stages:
                reason = f"rank {rank} has {op} of stage {op.stage}, which is rank {op.stage % p}'s"
                return ScheduleError(reason, schedule, rank, index)
    return None


def _rule(schedule: Schedule, error: ScheduleError) -> tuple[str, str]:
    row, index = schedule.rows[error.rank], error.index
    if index == len(row):
        return (
            "leaves an operation out",
            "every stage takes each microbatch forward and back, or the weights' gradients lack a "
            "part of the batch",
        )
    op, before = row[index], row[:index]
    if op.microbatch >= schedule.num_microbatches:
        return (
            "a microbatch that there is not",
            "microbatches are counted from 0, and there may be fewer of them than a rank could use",
        )
    if op.stage >= schedule.num_stages:
        return (
            "a stage that there is not",
            "stages are counted from 0 over the whole model",
        )
    if op.stage % schedule.num_ranks != error.rank:
        return (
            "a stage of another rank",
            "a stage's weights are on one rank, which alone can compute it: stage s is on rank "
            "s mod p",
        )
    if _is_made(op, before):
        return (
            "an operation twice",
            "a microbatch goes once through each stage, forward and back: a second time would "
            "count it twice",
        )
    if op.kind is not Kind.F and Op(Kind.F, op.stage, op.microbatch) not in before:
        return (
            "a backward before its forward",
            "a backward needs what the forward of the same microbatch has kept",
        )
    if op.kind is Kind.W and Op(Kind.I, op.stage, op.microbatch) not in before:
        return (
            "a W before its I",
            "the weights' gradients are products with gradients that the I has left behind",
        )
    return (
        "an order in which ranks wait for ever",
        "each rank performs its row in order. Follow one of those that wait to what it waits for, "
        "and on: the way ends where it began",
    )


def _is_made(op: Op, before: tuple[Op, ...]) -> bool:
    """Whether what this operation makes has been made, whole or by its half."""
    same = {
        Kind.F: (Kind.F,),
        Kind.B: (Kind.B, Kind.I, Kind.W),
        Kind.I: (Kind.B, Kind.I),
        Kind.W: (Kind.B, Kind.W),
    }
    return any(Op(kind, op.stage, op.microbatch) in before for kind in same[op.kind])
