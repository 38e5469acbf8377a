"""The bubble: how long a stage of a pipeline is idle in a step.

    naive          one microbatch at a time: one of p stages works            (p-1)/p of total
    gpipe, 1f1b    fill and drain, p - 1 microbatches long                    (p-1)/m of ideal
    interleaved    v virtual stages per rank: 1/v of that                     (p-1)/(v m) of ideal
    zb_h1          weight gradients fill most of it: F = I = W, m >= p        (p-1)/(3 m) of ideal
    zb_h2          no waiting inside a rank, staggered ranks: m >= 2p - 1     (p-1)/(3 m) of ideal
    zb_v           the same, two stages per rank, in a V: m >= 2p - 1         (p-1)/(6 m) of ideal

p stages, m microbatches. Two conventions are in use, and confused: relative to the IDEAL time, in
which no rank ever waits, and relative to the TOTAL time: x of ideal is x/(1+x) of total. With 8
stages and 16 microbatches 7/16 = 43.8% of ideal and 7/23 = 30.4% of total are the same bubble.

A step is counted here from the first rank's start to the last rank's end. The zero-bubble papers
count a rank from its own first operation to its own last: then zb_h2 and zb_v have no bubble.

Papers: Huang et al., GPipe, arXiv:1811.06965; Narayanan et al., arXiv:2104.04473, section 2.2; Qi
et al., "Zero bubble pipeline parallelism", arXiv:2401.10241, table 2.

Pipeline schedules in closed form: bubbles, and microbatches in flight.
"""

from __future__ import annotations

from labkit import arguments
from labkit.calc.result import Result

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v")
CONVENTIONS = ("total", "ideal")
_FORMULAS = {
    "naive": "p - 1",
    "gpipe": "(p - 1)/m",
    "1f1b": "(p - 1)/m",
    "interleaved": "(p - 1)/(v m)",
    "zb_h1": "(p - 1)/(3 m), for F = I = W",
    "zb_h2": "(p - 1)/(3 m), for F = I = W",
    "zb_v": "(p - 1)/(6 m), for F = I = W",
}


def bubble_fraction(
    stages: int,
    microbatches: int,
    schedule: str = "1f1b",
    virtual: int = 1,
    relative_to: str = "total",
) -> Result:
    """Return the bubble as a share of the step's time, "total", or of the time without it, "ideal".

    virtual: stages per rank, for "interleaved".

    ValueError for an unknown schedule or convention, and for too few microbatches: an interleaved
    schedule needs a multiple of the stages, zb_h1 as many as stages, zb_h2 and zb_v 2 p - 1.

    bubble_fraction(8, 16) == 7 / 23
    """
    p, m, v = _check(stages, microbatches, schedule, virtual)
    if relative_to not in CONVENTIONS:
        raise ValueError(f"relative_to={relative_to!r:.60}: say 'total' or 'ideal'")
    fewest = {"zb_h1": p, "zb_h2": 2 * p - 1, "zb_v": 2 * p - 1}.get(schedule, 1)
    if m < fewest:
        raise ValueError(
            f"microbatches={m} are fewer than the {fewest} that stages={p} need: there are not "
            f"enough weight gradients to fill the bubble of {schedule}, and its formula says too "
            f"little; give {fewest} or more"
        )
    zero_bubble = {"zb_h1": 3 * m, "zb_h2": 3 * m, "zb_v": 6 * m}
    divisor = ({"naive": 1, "interleaved": v * m} | zero_bubble).get(schedule, m)
    of_ideal = (p - 1) / divisor
    is_total = relative_to == "total"
    numbers = f"p = {p}, m = {m}" + (f", v = {v}" if schedule == "interleaved" else "")
    return Result(
        of_ideal / (1 + of_ideal) if is_total else of_ideal,
        "share",
        f"bubble of {schedule}",
        f"x = {_FORMULAS[schedule]}; {'x/(1 + x)' if is_total else 'x'}",
        f"{numbers}: x = {of_ideal:.4g}",
        convention=f"relative to {relative_to} time; stages of equal cost, free messages",
        source="GPipe, arXiv:1811.06965; Narayanan et al. 2021; Qi et al. 2024",
    )


def in_flight_microbatches(
    stages: int, microbatches: int, schedule: str = "1f1b", virtual: int = 1
) -> list[int]:
    """Return the most microbatches whose activations each stage holds at once.

    gpipe: all of them. 1f1b: as many as stages come after, and its own. naive: one. interleaved: in
    units of one of a rank's `virtual` stages, each 1/v of its layers. zb_h1: p on every stage,
    counting microbatches whose I is done and whose W is not. zb_h2: 2 p - 1. zb_v: by rank, in
    units of one of its two stages: 2 p on every rank.

    in_flight_microbatches(4, 8, "1f1b") == [4, 3, 2, 1]
    """
    p, m, v = _check(stages, microbatches, schedule, virtual)
    if schedule == "zb_h1":
        return [min(p, m)] * p
    if schedule == "zb_h2":
        return [min(2 * p - 1, m)] * p
    if schedule == "zb_v":
        return [min(m + rank + 1, 2 * m, 2 * p) for rank in range(p)]
    if schedule == "naive":
        return [1] * p
    if schedule == "gpipe":
        return [m] * p
    if schedule == "interleaved" and v > 1:
        # Forwards before the first backward: two for each stage that follows, and v - 1 rounds.
        return [min(2 * (p - stage - 1) + (v - 1) * p + 1, v * m) for stage in range(p)]
    return [min(p - stage, m) for stage in range(p)]


def _check(stages: int, microbatches: int, schedule: str, virtual: int) -> tuple[int, int, int]:
    p, m = arguments.counted("stages", stages), arguments.counted("microbatches", microbatches)
    v = arguments.counted("virtual", virtual)
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r:.60}: give one of {', '.join(SCHEDULES)}")
    if v > 1 and schedule != "interleaved":
        raise ValueError(f"virtual={v}: only schedule='interleaved' has virtual stages")
    if schedule == "interleaved" and m % p:
        raise ValueError(
            f"microbatches={m} is no multiple of stages={p}, and an interleaved schedule goes in "
            f"rounds of {p}; try {max(p, m - m % p)}"
        )
    return p, m, v
