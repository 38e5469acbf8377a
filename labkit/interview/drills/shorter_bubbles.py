"""Drills on schedules that make the bubble shorter: interleaved, zero-bubble."""

from labkit.interview.drills.bubble_drills import share_of_bubble
from labkit.interview.drills.drill import drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "09_pipeline_parallel"


@drill(
    "pp-4",
    "Bubble of an interleaved schedule",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A pipeline over {p} ranks is interleaved, {v} virtual stages on each rank, and takes "
    "{m} microbatches. Which share of the TOTAL time of a step is bubble?",
    draws={"p": (4, 8, 12, 16), "v": (2, 3, 4, 6), "m": (8, 16, 24, 32, 48, 64)},
    unit="%",
    digits=3,
    between=("1%", "60%"),
    where=lambda p, m: m % p == 0,
)
def interleaved_bubble(p: int, v: int, m: int) -> Solution:
    """(p-1)/(v m + p - 1)."""
    share = share_of_bubble(p, m, "interleaved", v=v)
    ideal = share_of_bubble(p, m, "interleaved", "ideal", v)
    return Solution(
        share,
        [
            f"A virtual stage takes 1/{v} of a stage's time: the bubble is {p - 1}/{v} "
            "microbatches long.",
            f"Relative to ideal time: {p - 1}/({v} x {m}) = {100 * ideal:.3g}%.",
            f"Of the total: {p - 1}/({v} x {m} + {p - 1}) = {100 * share:.3g}%.",
        ],
        [
            Trap(
                "relative to ideal time, not to total",
                ideal,
                "(p - 1)/(v m) compares with the time without a bubble.",
            ),
            Trap(
                "not interleaved",
                share_of_bubble(p, m),
                "Virtual stages are shorter, so the pipeline fills v times as fast.",
            ),
            Trap(
                "the plain share divided by v",
                share_of_bubble(p, m) / v,
                "What is divided by v is the bubble; the step gets shorter with it.",
            ),
            Trap(
                "v p stages",
                share_of_bubble(v * p, m),
                "Virtual stages share a rank: filling takes p - 1 of them, not v p - 1.",
            ),
        ],
    )


@drill(
    "pp-4",
    "Bubble of a zero-bubble schedule",
    difficulty=3,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs ZB-H1 with {m} microbatches; forward, input gradient and "
    "weight gradient take equally long. Which share of the TOTAL time of a step is bubble?",
    draws={"p": (4, 6, 7, 8, 9, 10, 12, 14, 16), "m": (8, 12, 16, 20, 24, 32, 40, 48, 64)},
    unit="%",
    digits=3,
    between=("1%", "40%"),
    where=lambda p, m: m >= p,
)
def zero_bubble_share(p: int, m: int) -> Solution:
    """(p-1)/(3m + p - 1)."""
    share, ideal = share_of_bubble(p, m, "zb_h1"), share_of_bubble(p, m, "zb_h1", "ideal")
    return Solution(
        share,
        [
            "Weight gradients wait until the bubble, and fill two thirds of it.",
            f"Relative to ideal time (p - 1)/(3 m) = {100 * ideal:.3g}% is left.",
            f"Of the total: {p - 1}/({3 * m} + {p - 1}) = {100 * share:.3g}%; 1F1B has "
            f"{100 * share_of_bubble(p, m):.3g}%.",
        ],
        [
            Trap(
                "as 1F1B",
                share_of_bubble(p, m),
                "ZB-H1 splits backward and puts weight gradients into the bubble.",
            ),
            Trap(
                "relative to ideal time, not to total",
                ideal,
                "(p - 1)/(3 m) compares with the time without a bubble.",
            ),
            Trap(
                "a third of 1F1B's share",
                share_of_bubble(p, m) / 3,
                "A third of the bubble is left, and the step is shorter, too.",
            ),
        ],
    )
