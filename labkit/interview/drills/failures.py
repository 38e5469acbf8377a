"""Drills on how often a large job fails."""

import math

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.question import Solution, Trap


@drill(
    "ft-2",
    "Mean time between interruptions, from a fleet",
    difficulty=1,
    notebook="11_combining_and_planning",
    prompt="A job on {gpus} GPUs had {num} interruptions in {days} days. At the same rate per GPU, "
    "what is the mean time between interruptions of a job on {other} GPUs?",
    draws={
        "gpus": (2048, 4096, 8192, 16384),
        "num": (38, 64, 97, 148, 230, 419),
        "days": (20, 30, 54, 75, 90),
        "other": (512, 1024, 1536, 3072, 24576, 32768),
    },
    unit="h",
    between=("0.5 h", "600 h"),
)
def mean_time_of_a_job(gpus: int, num: int, days: int, other: int) -> Solution:
    """Time over interruptions, times gpus/other."""
    seen = calc.mean_time_between_interruptions(num, days * 24)
    scaled = float(seen) * gpus / other
    hours = scaled / 3600
    return Solution(
        scaled,
        [
            f"There: {days} x 24 h / {num} = {seen.to('h'):.4g} h.",
            f"One GPU's share: {seen.to('h') * gpus:,.0f} GPU-hours between interruptions.",
            f"Over {other:,} GPUs: {hours:.4g} h.",
        ],
        [
            Trap(
                "not scaled to the other job",
                seen,
                f"{other:,} GPUs are {other / gpus:.4g} times as many as {gpus:,}, so they are "
                "interrupted that many times as often.",
            ),
            Trap(
                "scaled the wrong way",
                float(seen) * other / gpus,
                f"{'More' if other > gpus else 'Fewer'} GPUs mean "
                f"{'less' if other > gpus else 'more'} time between interruptions.",
            ),
            Trap(
                "of a single GPU",
                float(seen) * gpus,
                "Any one of all GPUs stops the job.",
            ),
            Trap("a day in hours left out", scaled / 24, "The time is given in days."),
        ],
    )


@drill(
    "ft-2",
    "Failures per day",
    difficulty=1,
    notebook="11_combining_and_planning",
    prompt="One GPU with its share of everything else fails once in {mtbf} hours, on average. How "
    "many failures per day does a job on {gpus} GPUs expect?",
    draws={
        "mtbf": (20_000, 25_000, 30_000, 35_000, 40_000, 50_000, 60_000, 65_000, 80_000, 90_000),
        "gpus": (256, 512, 768, 1024, 1536, 2048, 4096, 6144, 8192, 12288, 16384, 24576),
    },
    unit="",
    between=("0.1", "40"),
)
def failures_per_day(mtbf: int, gpus: int) -> Solution:
    """24 hours over the job's mean time."""
    job = calc.mean_time_between_interruptions(gpus, mtbf)
    per_day = 24 / job.to("h")
    return Solution(
        per_day,
        [
            f"The job's mean time is {mtbf:,} h / {gpus:,} = {job.to('h'):.4g} h.",
            f"A day has 24 h: {per_day:.4g} failures.",
            f"At least one in a day comes with probability {1 - math.exp(-per_day):.1%}.",
        ],
        [
            Trap("per hour", per_day / 24, "A day has 24 hours."),
            Trap(
                "the probability of at least one",
                1 - math.exp(-per_day),
                "That is at most 1; the expected number may be larger.",
            ),
            Trap(
                "hours between failures",
                job.to("h"),
                "That is the mean time; asked is how often in a day.",
            ),
            Trap("per week", 7 * per_day, "A day was asked for."),
        ],
    )
