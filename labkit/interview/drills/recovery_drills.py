"""Drills on what failures cost: the interval between checkpoints, the share lost, an outage."""

import math

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.numbers import amounts
from labkit.interview.drills.question import Solution, Trap

_JOBS = {
    "write": amounts("15 s", "20 s", "30 s", "45 s", "60 s", "90 s", "2 min", "3 min", "5 min"),
    "mtbf": amounts("2 h", "2.5 h", "3.1 h", "4 h", "5 h", "6 h", "8 h", "10 h", "12 h", "24 h"),
}


@drill(
    "ft-3",
    "Checkpoint interval by Young",
    difficulty=2,
    notebook="11_combining_and_planning",
    prompt="Training is idle for {write} while a checkpoint is written, and the job is "
    "interrupted every {mtbf} on average. How much work should lie between two checkpoints, by "
    "Young's formula?",
    draws=_JOBS,
    unit="min",
    between=("5 min", "200 min"),
)
def young_interval(write: float, mtbf: float) -> Solution:
    """sqrt(2 W M)."""
    interval = calc.checkpoint_interval(write, mtbf)
    lost = calc.lost_share(interval, write, mtbf)
    return Solution(
        interval,
        [
            f"W = {write:g} s, M = {mtbf:g} s.",
            f"2 W M = {2 * write * mtbf:.4g} s^2; its root is {float(interval):.4g} s.",
            f"That is {interval.to('min'):.3g} min; writing and repeating then take {lost}.",
        ],
        [
            Trap(
                "the factor 2 left out",
                float(interval) / math.sqrt(2),
                "Half an interval is lost on average, which is where the 2 comes from.",
            ),
            Trap(
                "half of the mean time",
                mtbf / 2,
                "That leaves out what writing costs: the interval goes with the root of both.",
            ),
            Trap(
                "twice the root",
                float(interval) * math.sqrt(2),
                "The 2 stands under the root.",
            ),
            Trap(
                "a factor of 60 among the units",
                float(interval) / math.sqrt(60),
                "Both times in the same unit before they are multiplied.",
            ),
        ],
    )


@drill(
    "ft-3",
    "Time lost to checkpoints and interruptions",
    difficulty=2,
    notebook="11_combining_and_planning",
    prompt="A checkpoint is written every {interval}, which stops training for {write}. The job is "
    "interrupted every {mtbf} on average, and needs {restart} to restart. Which share of all time "
    "is lost, to first order?",
    draws={
        **_JOBS,
        "interval": amounts("15 min", "30 min", "45 min", "1 h", "2 h"),
        "restart": amounts("3 min", "5 min", "10 min", "20 min"),
    },
    unit="%",
    between=("3%", "60%"),
    where=lambda interval, mtbf, write: interval < mtbf / 2 and write < interval / 4,
)
def share_lost(interval: float, write: float, mtbf: float, restart: float) -> Solution:
    """W/T + (T/2 + R)/M."""
    lost = calc.lost_share(interval, write, mtbf, restart)
    writing = write / interval
    undone = float(lost) - writing
    return Solution(
        lost,
        [
            f"Writing: {write:g} s / {interval:g} s = {writing:.3%}.",
            f"Each interruption costs half an interval and the restart, {interval / 2 + restart:g} "
            f"s of {mtbf:g} s: {undone:.3%}.",
            f"Together {lost}.",
        ],
        [
            Trap(
                "writing left out",
                undone,
                "Training is idle whenever a checkpoint is written.",
            ),
            Trap(
                "the whole interval lost each time",
                calc.lost_share(interval, write, mtbf, restart + interval / 2),
                "An interruption comes in the middle on average: half of an interval is lost.",
            ),
            Trap(
                "the restart left out",
                calc.lost_share(interval, write, mtbf),
                "Every interruption also costs the restart.",
            ),
            Trap("writing alone", writing, "Interruptions undo work, too."),
        ],
    )


@drill(
    "ft-5",
    "GPU-hours of one outage",
    difficulty=1,
    notebook="12_when_it_hangs",
    prompt="A job on {gpus} GPUs hangs. The collective's timeout ends it after {timeout}, it takes "
    "{restart} until it runs again, and checkpoints are written every {interval}, so half of that "
    "is lost on average. How many GPU-hours does it cost?",
    draws={
        "gpus": (256, 512, 1024, 2048, 4096, 16384),
        "timeout": amounts("5 min", "10 min", "30 min"),
        "restart": amounts("4 min", "8 min", "15 min"),
        "interval": amounts("20 min", "40 min", "1 h", "2 h"),
    },
    unit="",
    between=("30", "50000"),
)
def outage_cost(gpus: int, timeout: float, restart: float, interval: float) -> Solution:
    """All GPUs times everything that they wait for or repeat."""
    spans = {"restart_s": restart, "since_checkpoint_s": interval / 2}
    lost = calc.lost_gpu_hours(gpus, until_noticed_s=timeout, **spans)
    minutes = (timeout + restart + interval / 2) / 60
    return Solution(
        lost,
        [
            f"Until noticed {timeout / 60:g} min, restart {restart / 60:g} min, repeated "
            f"{interval / 120:g} min.",
            f"{minutes:g} min together, on {gpus:,} GPUs.",
            f"{gpus:,} x {minutes / 60:.4g} h = {lost.value:,.0f} GPU-hours.",
        ],
        [
            Trap(
                "the timeout alone",
                calc.lost_gpu_hours(gpus, until_noticed_s=timeout),
                "Restarting takes time, and work since the last checkpoint is done again.",
            ),
            Trap(
                "the whole interval repeated",
                calc.lost_gpu_hours(
                    gpus, until_noticed_s=timeout, restart_s=restart, since_checkpoint_s=interval
                ),
                "On average half of an interval is lost.",
            ),
            Trap(
                "repeated work left out",
                calc.lost_gpu_hours(gpus, until_noticed_s=timeout, restart_s=restart),
                "What was done since the last checkpoint is lost as well.",
            ),
            Trap("GPU-minutes", lost * 60, "GPU-hours were asked for."),
        ],
    )
