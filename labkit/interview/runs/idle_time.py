"""The bubble of a schedule, from the clocks of real ranks.

Ranks sleep instead of computing, so that ten of them really run at once on two cores; all
else is real: messages, order, waiting. Wire: 32 B per row over each boundary, and back.
"""

from labkit.interview.runs.real_run import real_run, run
from labkit.pipeline import Costs, Timing, emulated_step, gpipe, measured, plan

FORWARD_S = 0.02
_TRIES = 2


@real_run
def timing(num_stages: int, num_microbatches: int) -> Timing:
    """A step of GPipe on so many ranks: forwards of FORWARD_S seconds, backwards of twice as many.

    Of two steps the shorter one: whatever else runs on the machine can only add to a step.
    """
    schedule = plan(gpipe, num_stages, num_microbatches)
    costs = Costs(forward=FORWARD_S, input_gradient=FORWARD_S, weight_gradient=FORWARD_S)
    by_rank = run(emulated_step, num_stages, args=(schedule, costs, _TRIES), timeout=120).values
    steps = [measured(schedule, [steps[n].spans for steps in by_rank]) for n in range(_TRIES)]
    return min(steps, key=lambda step: step.makespan)


def share(num_stages: int, num_microbatches: int, relative_to: str = "total") -> float:
    """The ranks' idle time as a share of all their time ("total") or of their work ("ideal").

    A clock's reading: waking up and messages put it some points above the formula.
    """
    return timing(num_stages, num_microbatches).bubble(relative_to)
