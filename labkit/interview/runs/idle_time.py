"""The bubble of a schedule, from the clocks of real ranks.

Ranks sleep instead of computing, so that ten of them really run at once on two cores; all
else is real: messages, order, waiting. Wire: 32 B per row over each boundary, and back.
"""

from labkit.interview.recorded_times import timed_run
from labkit.interview.runs.real_run import run
from labkit.pipeline import Costs, Timing, emulated_step, gpipe, measured, plan
from labkit.pipeline.simulation import Span

FORWARD_S = 0.02
_TRIES = 2


def timing(num_stages: int, num_microbatches: int) -> Timing:
    """A step of GPipe on so many ranks: forwards of FORWARD_S seconds, backwards of twice as many.

    Of two steps the shorter one: whatever else runs on the machine can only add to a step.
    """
    schedule = plan(gpipe, num_stages, num_microbatches)
    return measured(
        schedule,
        [
            [Span(op, *times) for op, times in zip(row, of_rank, strict=True)]
            for row, of_rank in zip(schedule.rows, spans(num_stages, num_microbatches), strict=True)
        ],
    )


@timed_run
def spans(num_stages: int, num_microbatches: int) -> list[list[list[float]]]:
    """By rank: start and end of each of its operations in that step, from the first start."""
    schedule = plan(gpipe, num_stages, num_microbatches)
    costs = Costs(forward=FORWARD_S, input_gradient=FORWARD_S, weight_gradient=FORWARD_S)
    by_rank = run(emulated_step, num_stages, args=(schedule, costs, _TRIES), timeout=120).values
    steps = [measured(schedule, [steps[n].spans for steps in by_rank]) for n in range(_TRIES)]
    best = min(steps, key=lambda step: step.makespan)
    return [[[round(each.start, 6), round(each.end, 6)] for each in row] for row in best.rows]


def share(num_stages: int, num_microbatches: int, relative_to: str = "total") -> float:
    """The ranks' idle time as a share of all their time ("total") or of their work ("ideal").

    A clock's reading: waking up and messages put it some points above the formula.
    """
    return timing(num_stages, num_microbatches).bubble(relative_to)
