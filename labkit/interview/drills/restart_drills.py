"""Drills on restarts: the samples that are left, and copies in memory that are lost together."""

from collections.abc import Callable
from math import ceil, comb

from labkit.calc.reliability import Holders, fatal_share, groups, ring
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.question import Solution, Trap


@drill(
    "ft-4",
    "Steps left after a restart",
    difficulty=1,
    notebook="14_checkpoints",
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
    notebook="15_failing_and_going_on",
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
