"""What a rank holds during a step: microbatches in flight, and the memory of their activations.

    rank 0 of 4, 1F1B    F0 F1 F2 F3 B0 F4 B1 ...
    in flight            1  2  3  4  3  4  3          peak 4; GPipe's is m

This follows from the order alone: no times are needed. A microbatch is in flight on a stage from
its F to its B; where B is split, to its W, since the inputs of the weights are needed until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit import arguments
from labkit.pipeline.amounts import plain
from labkit.pipeline.op import Kind, Schedule
from labkit.pipeline.validate import validate


def in_flight(schedule: Schedule) -> list[int]:
    """By rank, how many microbatches it holds at most; on several stages a microbatch counts each.

    in_flight(plan(one_f_one_b, 4, 8)) == [4, 3, 2, 1]. Raises ScheduleError for what is no step.
    """
    return [round(peak) for peak in peak_memory(schedule)]


def peak_memory(
    schedule: Schedule,
    activation: float | Sequence[float] = 1.0,
    kept_for_weights: float = 1.0,
) -> list[float]:
    """By rank, the largest memory that activations take, in the unit of `activation`.

    activation: of one microbatch on one stage, one number or one per stage, in a list, an array or
    a tensor. kept_for_weights: the share of it that an I leaves for its W (the inputs of the
    products, without attention's scores and the like). ValueError for numbers that cannot be.
    """
    validate(schedule)
    sizes = _sizes(activation, schedule.num_stages)
    share = arguments.number("kept_for_weights", kept_for_weights, "0 to 1", least=0, most=1)
    change = {Kind.F: 1.0, Kind.B: -1.0, Kind.I: share - 1.0, Kind.W: -share}
    peaks = []
    for row in schedule.rows:
        held = peak = 0.0
        for op in row:
            held += change[op.kind] * sizes[op.stage]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


def _sizes(activation: float | Sequence[float], num_stages: int) -> list[float]:
    given = plain(activation)
    if not isinstance(given, tuple):
        return [arguments.number("activation", given, "0 or more", least=0)] * num_stages
    if len(given) != num_stages:
        raise ValueError(
            f"activation has {len(given)} sizes for {num_stages} stages; give one for each"
        )
    return [arguments.number("activation", each, "0 or more", least=0) for each in given]
