"""Weeks of a run that fails now and then: work, checkpoints, failures, restarts, and what is left.

    |  work  |W|  work  |W|  wo X  down  |  work  |W| ...
                            ----           X: a failure; the work since the last checkpoint is lost
    down = waited for a node + detected + restarted; a failure while it restarts begins it anew

Failures come at random (exponential), at a rate that grows with the number of GPUs, and not while
the job waits for a node. Goodput is the share of all time in which work was done that stayed.

How far the first order holds (calc.lost_share at Young's interval sqrt(2 W M), no restart), M being
the mean time between failures:

    write W        lost by the formula      lost here
    0.01 M         14.1%                    13.5%
    0.1 M          44.7%                    38.6%
    0.5 M          all                      71.3%; at Daly's interval, 0.69 M, 69.8%

Papers: Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006.
"""

from __future__ import annotations

import random
import statistics
from typing import Any, NamedTuple

from labkit.calc.checked_numbers import check_above_zero, check_not_negative, check_ranks
from labkit.calc.result import Result, number_of
from labkit.calc.simulate.failing_run import FailingRun, Spares
from labkit.calc.simulate.weeks_result import WEEK_S, SimulatedWeeks
from labkit.calc.units import seconds_text


def weeks(
    step_s: float | Result,
    num_gpus: int,
    gpu_hours_between_interruptions: float,
    checkpoint_write_s: float | Result,
    interval_s: float | Result,
    restart_s: float | Result,
    detect_s: float | Result = 0.0,
    weeks: float = 4.0,
    seed: int = 0,
    *,
    blocked_share: float = 1.0,
    spares: Spares | None = None,
) -> SimulatedWeeks:
    """A run of so many weeks, failure by failure.

    interval_s: of work between checkpoints, rounded to whole steps, at least one. detect_s: from a
    failure until somebody notices; restart_s: from there to the first step. blocked_share: of a
    write, during which training is idle; less than 1 is an asynchronous checkpoint, whose rest is
    written beside the work, and which counts when it is complete. spares: None: always enough.

    ValueError for what no run has, and for an interval in which no checkpoint can be completed.
    """
    given = {
        "step_s": step_s,
        "interval_s": interval_s,
        "checkpoint_write_s": checkpoint_write_s,
        "restart_s": restart_s,
        "detect_s": detect_s,
    }
    seconds = {name: number_of(each, name, "seconds") for name, each in given.items()}
    _check(seconds, weeks, gpu_hours_between_interruptions, blocked_share)
    step, write = seconds["step_s"], seconds["checkpoint_write_s"]
    run = FailingRun(
        work_s=_whole_steps(seconds["interval_s"], step),
        blocked_s=blocked_share * write,
        beside_s=(1 - blocked_share) * write,
        down_s=seconds["restart_s"] + seconds["detect_s"],
        mtbf_s=gpu_hours_between_interruptions * 3600 / check_ranks(num_gpus, "num_gpus"),
        total_s=weeks * WEEK_S,
        spares=spares,
        rng=random.Random(seed),
    )
    return run.simulated(step)


class Goodputs(NamedTuple):
    """Of runs that differ in their failures only."""

    mean: float
    deviation: float
    """Standard deviation: how far one run is from the mean."""


def goodputs(*given: Any, **options: Any) -> Goodputs:
    """The goodput of `weeks` with these arguments, over the seeds 0 to 19."""
    found = [weeks(*given, **{**options, "seed": seed}).goodput for seed in range(20)]
    return Goodputs(statistics.mean(found), statistics.stdev(found))


def _check(seconds: dict[str, float], weeks: float, hours: float, share: float) -> None:
    check_above_zero(seconds["step_s"], "step_s", "a step takes time")
    check_above_zero(seconds["interval_s"], "interval_s", "work comes between two checkpoints")
    for name, each in seconds.items():
        check_not_negative(each, name)
    check_above_zero(weeks, "weeks", "give how long the run lasts")
    check_above_zero(hours, "gpu_hours_between_interruptions", "give GPU-hours")
    check_not_negative(share, "blocked_share")
    if share > 1:
        raise ValueError(f"blocked_share={share}: give a share of the write, 0 to 1")
    beside = (1 - share) * seconds["checkpoint_write_s"]
    work = _whole_steps(seconds["interval_s"], seconds["step_s"])
    if beside > work:
        raise ValueError(
            f"interval_s={seconds['interval_s']:g}: the part of a checkpoint that is written "
            f"beside the work takes {seconds_text(beside)}, and after {seconds_text(work)}, whole "
            "steps, the next would come before its end; give a longer interval"
        )


def _whole_steps(interval_s: float, step_s: float) -> float:
    """Seconds of work between checkpoints: the nearest number of steps, at least one."""
    return max(1, round(interval_s / step_s)) * step_s
