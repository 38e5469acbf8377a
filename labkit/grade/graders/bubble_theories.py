"""Wrong ideas of the bubble, and the answers that they lead to: for both functions at once."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from labkit.grade.by_theory import Theory
from labkit.grade.graders.bubble_ideas import (
    Idea,
    Share,
    as_ideal,
    as_the_other,
    as_total,
    by_convention,
    divided,
    of_ideal,
)
from labkit.grade.graders.bubble_questions import Drill

_RIGHT = Idea()


def _idea(name: str, explanation: str, idea: Idea, hint: int = 2) -> tuple[str, str, Idea, int]:
    return (name, explanation, idea, hint)


def _only(schedules: str, other: Callable[[Drill, int], Any]) -> Idea:
    """Of some schedules another bubble, relative to ideal; right for the rest."""
    names = schedules.split()
    return Idea(
        lambda drill, m: Share(other(drill, m)) if drill.schedule in names else of_ideal(drill, m)
    )


def _divides_the_total(drill: Drill, x: Share) -> Share:
    if drill.relative_to == "ideal" or drill.schedule == "naive":
        return by_convention(drill, x)
    return as_total(drill, x * divided(drill)) / divided(drill)


_CONVENTION = (
    "(p - 1)/m is the bubble relative to the ideal time, of m microbatches. The total time has the "
    "bubble in it: (p - 1)/(m + p - 1). x of ideal is x/(1 + x) of total"
)

_IDEAS = (
    _idea(
        "calls a share of the ideal time one of the total",
        f"{_CONVENTION}. 7/16 and 7/23 are the same bubble",
        Idea(convention=as_ideal),
        1,
    ),
    _idea(
        "calls a share of the total time one of the ideal",
        f"{_CONVENTION}. Relative to ideal nothing is added below the line, and it may be over 1",
        Idea(convention=as_total),
        1,
    ),
    _idea("swaps the two conventions", _CONVENTION, Idea(convention=as_the_other), 1),
    _idea(
        "counts 2 m in the place of m",
        "a microbatch goes forward and back, and so does the fill: if there are 2 m slots of work, "
        "there are 2 (p - 1) of bubble. (p - 1)/(2 m + p - 1) is an interleaved schedule's, with "
        "two stages per rank",
        _only("gpipe 1f1b", lambda drill, m: Fraction(drill.p - 1, 2 * m)),
    ),
    _idea(
        "takes 1F1B's bubble for smaller than GPipe's",
        "1F1B runs the same operations in an order that lets go of activations early: what is "
        "less is memory, p - rank microbatches in the place of m. Fill and drain take as long",
        _only("1f1b", lambda drill, m: Fraction(drill.p - 1, 2 * m)),
        1,
    ),
    _idea(
        "counts p in the place of p - 1",
        "the last rank has its first microbatch after p - 1 others have had it; one rank alone "
        "never waits",
        _only(
            "gpipe 1f1b interleaved zb_h1", lambda drill, m: Fraction(drill.p, divided(drill) * m)
        ),
        3,
    ),
    _idea(
        "forgets the virtual stages",
        "each of v stages per rank has a v-th of the layers, so a microbatch passes one in a v-th "
        "of the time, and fill and drain take a v-th: (p - 1)/(v m) of ideal",
        _only("interleaved", lambda drill, m: Fraction(drill.p - 1, m)),
    ),
    _idea(
        "lets virtual stages make the bubble larger",
        "v p stages are a longer pipeline, but each is a v-th as deep, and a rank has other "
        "stages to work on meanwhile: the bubble is a v-th, not v-fold",
        _only("interleaved", lambda drill, m: Fraction((drill.p - 1) * drill.virtual, m)),
    ),
    _idea(
        "divides a share of the total time",
        "v, and zero bubble's 3, divide the idle time, and with it the total becomes shorter, too: "
        "divide relative to ideal, where the rest stays, and only then turn x into x/(1 + x)",
        Idea(convention=_divides_the_total),
    ),
    _idea(
        "takes the name of zero bubble at its word",
        "ZB-H1 has 1F1B's memory, and to fill all of the bubble takes more (that is ZB-H2). What "
        "is left are the p - 1 input gradients of the way back, which W cannot fill",
        _only("zb_h1", lambda drill, m: 0),
        1,
    ),
    _idea(
        "gives ZB-H1 the bubble of 1F1B",
        "W waits for nobody, so it runs where the rank would stand still: of F, I and W the "
        "bubble keeps one, (p - 1)/(3 m) of ideal",
        _only("zb_h1", lambda drill, m: Fraction(drill.p - 1, m)),
        1,
    ),
    _idea(
        "gives ZB-H1 half the bubble of 1F1B",
        "a forward is as long as I and as W: a microbatch is three parts of work, and the bubble "
        "keeps one of them for each of p - 1 ranks",
        _only("zb_h1", lambda drill, m: Fraction(drill.p - 1, 2 * m)),
    ),
    _idea(
        "takes naive for a pipeline",
        "with one microbatch at a time the next one starts when the last is back: of p ranks one "
        "works, (p - 1)/p of the total is idle, and more microbatches do not help",
        _only("naive", lambda drill, m: Fraction(drill.p - 1, m)),
        1,
    ),
    _idea(
        "lets no bubble be over 1",
        "with fewer microbatches than ranks the idle time is longer than the work: relative to "
        "ideal that is more than 1",
        replace(_RIGHT, convention=lambda drill, x: min(by_convention(drill, x), Share(1))),
    ),
)

BUBBLE: tuple[Theory[Drill], ...] = (
    *(Theory(name, why, idea.bubble, hint) for name, why, idea, hint in _IDEAS),
    Theory(
        "gives percents",
        "the contract is a share: 0.25, not 25",
        lambda drill: 100 * _RIGHT.bubble(drill),
        3,
    ),
    Theory(
        "gives what is busy",
        "that is the share in which the ranks work; the bubble is the rest",
        lambda drill: 1 - _RIGHT.bubble(drill),
        3,
    ),
)


def _less_a_step(drill: Drill) -> int | None:
    """Rounded down to what the schedule can have."""
    fewest = _RIGHT.fewest(drill)
    if fewest is None or _RIGHT.share(drill, fewest) == Fraction(drill.percent, 100):
        return fewest
    return max(fewest - _RIGHT.step(drill), _RIGHT.first(drill))


def _strictly_below(drill: Drill) -> int | None:
    fewest = _RIGHT.fewest(drill)
    if fewest is None or _RIGHT.share(drill, fewest) < Fraction(drill.percent, 100):
        return fewest
    return None if drill.schedule == "naive" else fewest + _RIGHT.step(drill)


def _always_some(drill: Drill) -> int | None:
    fewest = _RIGHT.fewest(drill)
    return 1 if fewest is None else fewest


MICROBATCHES: tuple[Theory[Drill], ...] = (
    Theory(
        "rounds down",
        "with one microbatch fewer than the quotient rounded up the bubble is over the limit",
        _less_a_step,
        3,
    ),
    Theory(
        "allows less than the limit",
        "the bubble may be just as large as the limit: at most, not below",
        _strictly_below,
        3,
    ),
    Theory(
        "gives microbatches that an interleaved schedule cannot have",
        "it goes in rounds of p microbatches, so their number is a multiple of p: round up to it",
        lambda drill: replace(_RIGHT, step=lambda _: 1, first=_first_of_any).fewest(drill),
        3,
    ),
    Theory(
        "gives ZB-H1 fewer microbatches than ranks",
        "with m < p there are not enough W to fill the bubble, and (p - 1)/(3 m) says too little: "
        "the contract is p or more",
        lambda drill: replace(
            _RIGHT, first=lambda its: 1 if its.schedule == "zb_h1" else _RIGHT.first(its)
        ).fewest(drill),
        3,
    ),
    Theory(
        "forgets which numbers of microbatches a schedule can have",
        "rounded up is not all: an interleaved schedule goes in rounds of p microbatches, so "
        "their number is a multiple of p, and ZB-H1 takes p or more",
        lambda drill: replace(_RIGHT, step=lambda _: 1, first=lambda _: 1).fewest(drill),
        3,
    ),
    Theory(
        "expects enough microbatches to help naive",
        "its bubble does not depend on their number, (p - 1)/p of the total: no number is enough, "
        "which is None",
        _always_some,
    ),
    *(Theory(name, why, idea.fewest, hint) for name, why, idea, hint in _IDEAS),
)


def _first_of_any(drill: Drill) -> int:
    return drill.p if drill.schedule == "zb_h1" else 1
