"""Drills on the bubble of a pipeline, by both conventions."""

from bisect import bisect_left

from labkit import calc
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "09_pipeline_parallel"
_STAGES = (4, 6, 8, 10, 12, 16)
_MOST_MICROBATCHES = 4096
_MICROBATCHES = (4, 8, 12, 16, 24, 32, 48, 64)


def share_of_bubble(
    stages: int, num: int, schedule: str = "1f1b", of: str = "total", v: int = 1
) -> float:
    """Of a schedule, of the total or the ideal time, with v virtual stages on each rank."""
    return float(calc.bubble_fraction(stages, num, schedule, v, of))


@drill(
    "pp-2",
    "Bubble as a share of the step",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs {schedule} with {m} microbatches. For which share "
    "of the TOTAL time of a step is a stage idle?",
    draws={
        "p": _STAGES,
        "m": _MICROBATCHES,
        "schedule": (Shown("1f1b", "1F1B"), Shown("gpipe", "GPipe")),
    },
    unit="%",
    digits=3,
    between=("4%", "85%"),
)
def bubble_of_total(p: int, m: int, schedule: str) -> Solution:
    """(p-1)/(m+p-1)."""
    share, ideal = share_of_bubble(p, m, schedule), share_of_bubble(p, m, schedule, "ideal")
    return Solution(
        share,
        [
            f"Filling and draining take p - 1 = {p - 1} microbatches' time; work takes {m}.",
            f"A step lasts {m} + {p - 1} = {m + p - 1} of them.",
            f"{p - 1}/{m + p - 1} = {100 * share:.3g}%; of the ideal time it would be "
            f"{100 * ideal:.3g}%.",
        ],
        [
            Trap(
                "relative to ideal time, not to total",
                ideal,
                "(p - 1)/m compares with the time without a bubble; of the step's whole time it is "
                "less.",
            ),
            Trap(
                "p for p - 1",
                share_of_bubble(p + 1, m, schedule),
                "The first stage waits for the p - 1 others, not for itself.",
            ),
            Trap(
                "interleaved with two virtual stages",
                (p - 1) / (2 * m + p - 1),
                "That form is of a schedule with two stages on each rank.",
            ),
            Trap("the share of work", 1 - share, "The question is the time that is lost."),
        ],
    )


@drill(
    "pp-2",
    "Bubble relative to ideal time",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs 1F1B with {m} microbatches. How large is the bubble "
    "relative to the IDEAL time, in which nobody ever waits?",
    draws={"p": _STAGES, "m": (*_MICROBATCHES, 20, 40, 96)},
    unit="%",
    digits=3,
    between=("5%", "400%"),
)
def bubble_of_ideal(p: int, m: int) -> Solution:
    """(p-1)/m."""
    ideal, share = share_of_bubble(p, m, of="ideal"), share_of_bubble(p, m)
    return Solution(
        ideal,
        [
            f"The ideal time is that of {m} microbatches.",
            f"The bubble is p - 1 = {p - 1} microbatches long.",
            f"{p - 1}/{m} = {100 * ideal:.3g}%; of the total it is {100 * share:.3g}%.",
        ],
        [
            Trap(
                "relative to total time, not to ideal",
                share,
                "(p - 1)/(m + p - 1) compares with the whole step, bubble included.",
            ),
            Trap(
                "p for p - 1",
                share_of_bubble(p + 1, m, of="ideal"),
                "A pipeline of one stage has no bubble: p - 1.",
            ),
            Trap(
                "microbatches over stages",
                m / (p - 1),
                "More microbatches make the bubble smaller, not larger.",
            ),
        ],
    )


@drill(
    "pp-6",
    "Microbatches for a small bubble",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs 1F1B. How many microbatches does it need, at least, so "
    "that the bubble is at most {percent}% of the TOTAL time?",
    draws={"p": _STAGES, "percent": (5, 8, 10, 12, 15, 20, 25, 30)},
    unit="",
    digits=None,
    between=("6", "400"),
)
def microbatches_for_bubble(p: int, percent: int) -> Solution:
    """The least m with (p-1)/(m+p-1) at most x."""
    least = _least_microbatches(p, percent / 100)
    return Solution(
        least,
        [
            f"(p - 1)/(m + p - 1) <= {percent}% means m + p - 1 >= {p - 1}/{percent}% = "
            f"{100 * (p - 1) / percent:.4g}.",
            f"m >= {100 * (p - 1) / percent - (p - 1):.4g}, so {least}: "
            f"{100 * share_of_bubble(p, least):.3g}%.",
            f"With {least - 1} it would be {100 * share_of_bubble(p, least - 1):.3g}%.",
        ],
        [
            Trap(
                "relative to ideal time, not to total",
                _least_microbatches(p, percent / 100, "ideal"),
                "(p - 1)/m is the bubble relative to the time without it.",
            ),
            Trap("one too few", least - 1, "Then the bubble is larger than allowed."),
            Trap(
                "p for p - 1",
                _least_microbatches(p + 1, percent / 100),
                "The bubble is p - 1 microbatches long.",
            ),
        ],
    )


def _least_microbatches(p: int, share: float, of: str = "total") -> int:
    """By halving what is left: more microbatches, a smaller bubble. Met exactly is met."""
    return (
        bisect_left(
            range(1, _MOST_MICROBATCHES),
            True,
            key=lambda m: share_of_bubble(p, m, of=of) <= share + 1e-12,
        )
        + 1
    )
