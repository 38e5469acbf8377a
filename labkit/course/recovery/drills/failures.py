"""Drills on failures: how often a job fails, steps that are left, copies that are lost."""

import math
from collections.abc import Callable
from math import ceil, comb

from labkit import calc
from labkit.calc.reliability import Holders, fatal_share, groups, ring
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.question import Solution, Trap


@drill(
    "ft-2",
    "Mean time between interruptions, from a fleet",
    difficulty=1,
    notebook="18_combining_and_planning",
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
    notebook="18_combining_and_planning",
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


@drill(
    "ft-4",
    "Steps left after a restart",
    difficulty=1,
    notebook="21_checkpoints",
    prompt="An epoch has {samples} samples. A job is killed after {steps} steps of {batch} "
    "samples, on all ranks together, all of them saved. Its loader is {ahead} batches ahead. The "
    "job goes on with {new} samples per step. How many steps does it make until the epoch ends? "
    "The last one may be smaller.",
    draws={
        "samples": (20_000, 25_000, 30_000, 40_000, 50_000),
        "steps": (40, 60, 75, 90, 110),
        "batch new": ((64, 96), (96, 64), (128, 96), (128, 192), (192, 128), (160, 128)),
        "ahead": (2, 4, 6, 8),
    },
    unit="",
    digits=None,
    between=("20", "2000"),
    where=lambda samples, steps, batch, new, ahead: (steps + ahead) * batch < 0.8 * samples,
)
def steps_left(samples: int, steps: int, batch: int, new: int, ahead: int) -> Solution:
    """ceil((N - steps B) / B')."""
    left = samples - steps * batch
    return Solution(
        ceil(left / new),
        [
            f"Used: {steps} x {batch} = {steps * batch:,} samples. What is only loaded is lost "
            "with the process, and is loaded again.",
            f"Left: {samples:,} - {steps * batch:,} = {left:,} samples.",
            f"{left:,} / {new} = {left / new:.2f}, so {ceil(left / new)} steps.",
        ],
        [
            Trap(
                "batches counted",
                ceil(samples / new) - steps,
                "Steps of another batch are other samples: the cursor counts samples.",
            ),
            Trap(
                "loaded samples counted",
                ceil((left - ahead * batch) / new),
                "No step has used what the loader has read ahead.",
            ),
            Trap("the last step dropped", left // new, "The rest of the epoch is a step, too."),
            Trap(
                "the old batch",
                ceil(left / batch),
                "The steps that are left have the new batch.",
            ),
        ],
    )


@drill(
    "ft-6",
    "Copies in memory that are lost together",
    difficulty=2,
    notebook="22_failing_and_going_on",
    prompt="{n} hosts hold {m} copies of each host's state in memory, the host's own included. "
    "{placement}. {k} hosts fail at once, each set of {k} equally likely. How likely is it that "
    "a state is lost?",
    draws={
        "n m k": (
            *((8, 2, 2), (8, 2, 3), (10, 2, 2), (10, 2, 3), (10, 2, 4), (12, 2, 2), (12, 2, 3)),
            *((14, 2, 2), (14, 2, 3), (9, 3, 3), (9, 3, 4), (12, 3, 3), (12, 3, 4), (12, 3, 5)),
        ),
        "placement": (
            Shown(ring, "The others are in the next hosts of a ring"),
            Shown(groups, "Groups of hosts hold each other's states"),
        ),
    },
    unit="%",
    between=("0.1%", "90%"),
)
def copies_lost(n: int, m: int, k: int, placement: Callable[[int, int], Holders]) -> Solution:
    """Fatal sets of k hosts over all sets."""
    other, num_groups = (groups, n) if placement is ring else (ring, n // m)
    share, num_sets = fatal_share(placement(n, m), k), comb(n, k)
    one = comb(n - m, k - m) / num_sets
    return Solution(
        share,
        [
            f"{n} hosts have {num_sets:,} sets of {k}.",
            f"A state is lost with all {m} hosts of its group: {num_groups} groups.",
            f"{round(share * num_sets):,} sets contain a group, each counted once.",
            f"{round(share * num_sets):,} / {num_sets:,} = {share:.2%}.",
        ],
        [
            Trap(
                "the other placement",
                fatal_share(other(n, m), k),
                "A ring has a group for each host, groups have one for all of their hosts.",
            ),
            Trap(
                "each set counted for every state that it loses",
                n * one,
                "Hosts of a group lose their states together, and one set can hit two groups.",
            ),
            Trap(
                "one host's state",
                one,
                "The question is whether any state is lost.",
            ),
            Trap(
                "independent failures",
                1 - (1 - (k / n) ** m) ** num_groups,
                "The failed hosts are different ones: after the first, fewer are left to draw.",
            ),
        ],
    )
