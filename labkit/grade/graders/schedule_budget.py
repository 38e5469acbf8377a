"""A schedule that is a step, and takes longer than it must, or holds more."""

from collections.abc import Sequence

from labkit.comm.words import listed
from labkit.grade.graders.schedule_pipelines import Pipeline, cost_of, cost_of_message
from labkit.grade.outcome import Finding, Outcome
from labkit.pipeline import Costs, Kind, Schedule, in_flight, in_time, simulate
from labkit.pipeline.text import around


def holds_more(pipeline: Pipeline, schedule: Schedule, most: Sequence[int]) -> Finding | None:
    """Activations of more microbatches at once than `most`, by rank."""
    held = in_flight(schedule)
    over = [rank for rank, (got, may) in enumerate(zip(held, most, strict=True)) if got > may]
    if not over:
        return None
    rank = over[0]
    return Finding(
        Outcome.OVER_BUDGET,
        "holds more than it must",
        "activations of a microbatch are kept from its forward to the end of its backward, and "
        "with fewer of them at a time everybody would be as busy. The marked cell takes in the "
        "first that is one too many",
        first_seen=f"{pipeline}: rank {rank} holds {held[rank]} where {most[rank]} would do; by "
        f"rank {_numbers(held)}, and at most {_numbers(most)}",
        hint=2,
        picture=around(schedule, {rank: _first_over(schedule, rank, most[rank])}),
    )


def takes_longer(
    pipeline: Pipeline, schedule: Schedule, costs: Costs, makespan: float, kinds: Sequence[Kind]
) -> Finding | None:
    """A step that takes more than `makespan`, by simulation."""
    timing = simulate(schedule, costs)
    # Exact: sums of halves and of small whole numbers.
    if timing.makespan <= makespan:
        return None
    busy = timing.busy[0]  # stages cost the same, so ranks are equally busy
    told = listed([f"{kind} = {cost_of(costs, kind):g}" for kind in kinds])
    if message := cost_of_message(costs):
        told = f"{told}, and {message:g} for a message"
    bubbles = f"a bubble of {timing.bubble('ideal'):.1%} of the ideal time, and not of "
    return Finding(
        Outcome.OVER_BUDGET,
        "a larger bubble than it must have",
        "somewhere a rank waits for what another could have done before: look for the first dot "
        "that need not be, and for what the operation behind it waits for",
        first_seen=f"{pipeline}, {told}: {timing.makespan:g} units of time where {makespan:g} "
        f"would do; {bubbles}{makespan / busy - 1:.1%}",
        hint=2,
        picture=in_time(timing, most=30 if pipeline.virtual == 1 else 20),
    )


def _first_over(schedule: Schedule, rank: int, most: int) -> int:
    """The index of the forward that takes in one too many."""
    held = 0
    for index, op in enumerate(schedule.rows[rank]):
        held += {Kind.F: 1, Kind.B: -1, Kind.I: 0, Kind.W: -1}[op.kind]
        if held > most:
            return index
    raise AssertionError(f"rank {rank} never holds more than {most}")


def _numbers(counts: Sequence[int]) -> str:
    return listed([str(count) for count in counts])
