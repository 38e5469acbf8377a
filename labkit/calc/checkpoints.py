"""How often to write a checkpoint: seldom enough to work, often enough to lose little.

    lost per second  =  write / interval  +  (interval / 2 + restart) / MTBF         to first order
                     =  1 - T / (M e^(R/M) (e^((T + W)/M) - 1))                      exactly

    young   sqrt(2 W M)                                the least of the first, for W much below M
    daly    sqrt(2 W M) (1 + sqrt(W/(2M))/3 + W/(18M)) - W      of the second, up to W = 2 M

T seconds of work between checkpoints, W to write one, R to restart, M mean time between
interruptions. Papers: Young, "A first order approximation to the optimum checkpoint interval", CACM
17(9), 1974; Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
FGCS 22(3), 2006.
"""

from __future__ import annotations

import math

from labkit.calc.checked_numbers import check_above_zero, check_not_negative, shown
from labkit.calc.result import Result, number_of

METHODS = ("young", "daly")
# The interval sqrt(2 W M) loses sqrt(2 W / M) of all time: from W = M/2 on, all of it.
_OUT_OF_RANGE = (
    "; out of Young's range, which is W much below M: from W = M/2 on this loses all time by its "
    "own formula, and Daly's is good up to W = 2 M"
)


def mean_time_between_interruptions(interruptions: float, hours: float) -> Result:
    """MTBF as seen: how long a job ran, over how often it was interrupted.

    round(mean_time_between_interruptions(419, 54 * 24).to("h"), 2) == 3.09, of Llama 3's training
    """
    check_above_zero(interruptions, "interruptions", "without one there is no mean; give 1 or more")
    check_above_zero(hours, "hours", "give how long the job ran")
    return Result(
        hours * 3600 / interruptions,
        "seconds",
        "mean time between interruptions",
        "time / interruptions",
        f"{hours:g} h / {interruptions:g}",
        source="Grattafiori et al., arXiv:2407.21783, section 3.3.4",
    )


def checkpoint_interval(
    write_s: float | Result, mtbf_s: float | Result, method: str = "young"
) -> Result:
    """Seconds of work between the end of one checkpoint and the next.

    write_s: for which training is idle. mtbf_s: of the whole job, seconds. Where Young's
    interval would lose all time, the convention says so.
    round(checkpoint_interval(60, 3.09 * 3600).to("min"), 1) == 19.3
    """
    write_s, mtbf = number_of(write_s, "write_s", "seconds"), number_of(mtbf_s, "mtbf_s", "seconds")
    check_above_zero(write_s, "write_s", "what costs nothing is written all the time")
    check_above_zero(mtbf, "mtbf_s", "give the mean time between interruptions")
    _checked(method)
    young = math.sqrt(2 * write_s * mtbf)
    formula, source = "sqrt(2 W M)", "Young, CACM 17(9), 1974"
    interval = young
    if method == "daly":
        formula = "sqrt(2 W M) (1 + sqrt(W/2M)/3 + W/18M) - W; M where W is 2 M or more"
        source = "Daly, FGCS 22(3), 2006"
        ratio = write_s / (2 * mtbf)
        interval = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s if ratio < 1 else mtbf
    return Result(
        interval,
        "seconds",
        "time between checkpoints",
        formula,
        f"W = {write_s:g} s, M = {mtbf:g} s",
        convention="interruptions are independent; a restart costs the same whenever it comes"
        + (_OUT_OF_RANGE if method == "young" and write_s >= mtbf / 2 else ""),
        source=source,
    )


def lost_share(
    interval_s: float | Result,
    write_s: float | Result,
    mtbf_s: float | Result,
    restart_s: float | Result = 0.0,
    method: str = "young",
) -> Result:
    """The share of all time that goes into writing, and into what interruptions undo.

    method: "young", the first order; ValueError where that is more than all time, since it is for
    times well below the MTBF. "daly": the exact mean where interruptions are exponential.
    round(float(lost_share(1200, 60, 3600, 600, "daly")), 3) == 0.327
    """
    interval, mtbf = (
        number_of(interval_s, "interval_s", "seconds"),
        number_of(mtbf_s, "mtbf_s", "seconds"),
    )
    write_s = number_of(write_s, "write_s", "seconds")
    restart_s = number_of(restart_s, "restart_s", "seconds")
    check_above_zero(interval, "interval_s", "work comes between two checkpoints")
    check_not_negative(write_s, "write_s")
    check_above_zero(mtbf, "mtbf_s", "give the mean time between interruptions")
    check_not_negative(restart_s, "restart_s")
    if _checked(method) == "daly":
        return _exact_share(interval, write_s, mtbf, restart_s)
    share = write_s / interval + (interval / 2 + restart_s) / mtbf
    if share > 1:
        raise ValueError(
            f"{share:.3g} times all time would be lost: interval_s={interval:g}, write_s="
            f"{write_s:g} and restart_s={restart_s:g} are too long for mtbf_s={mtbf:g}, and no "
            "work gets done; this formula is for times well below the MTBF, and method='daly' "
            "for all"
        )
    return Result(
        share,
        "share",
        "lost time",
        "W / T + (T/2 + R) / M",
        f"{write_s:g} / {interval:g} + ({interval:g} / 2 + {restart_s:g}) / {mtbf:g}",
        convention="first order: for T and R much below M",
        source="Young, CACM 17(9), 1974",
    )


def _exact_share(interval: float, write_s: float, mtbf: float, restart_s: float) -> Result:
    """A turn of work and write is begun again until none interrupts it: T over its mean time."""
    turn = mtbf * math.exp(restart_s / mtbf) * math.expm1((interval + write_s) / mtbf)
    return Result(
        1 - interval / turn,
        "share",
        "lost time",
        "1 - T / (M e^(R/M) (e^((T + W)/M) - 1))",
        f"T = {interval:g} s, W = {write_s:g} s, M = {mtbf:g} s, R = {restart_s:g} s",
        convention="interruptions are exponential, and begin a restart anew; where none comes in a "
        "restart, use M + R instead of M e^(R/M)",
        source="Daly, FGCS 22(3), 2006, equation 13",
    )


def _checked(method: str) -> str:
    if method not in METHODS:
        raise ValueError(f"method={shown(method)}: give 'young' or 'daly'")
    return method
