"""Grade bubble_fraction: five schedules by two conventions, and the microbatches for a limit."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

SCHEDULES = ("1f1b", "gpipe", "zb_h1", "naive", "interleaved")
FUNCTIONS = BUBBLE, FEWEST = "bubble", "microbatches_for"
# The limit is reached exactly. Quotients are exact in floats too, or are not (ROUNDED).
EXACT = [(4, 25, "1f1b"), (3, 50, "gpipe"), (5, 20, "1f1b"), (6, 25, "gpipe"), (7, 50, "1f1b")]
EXACT += [(3, 20, "1f1b"), (7, 25, "gpipe"), (5, 50, "1f1b"), (7, 50, "zb_h1")]
ROUNDED = [(4, 12, "1f1b"), (7, 6, "gpipe"), (8, 35, "gpipe"), (8, 7, "1f1b"), (8, 7, "zb_h1")]
ROUNDED += [(5, 16, "zb_h1"), (6, 4, "zb_h1"), (8, 1, "zb_h1")]


def cases(draw: Draw) -> list[Case]:
    """Each schedule by both conventions, few microbatches, one rank, limits reached exactly."""
    rng = draw.rng
    bubbles = []
    limits = [(*edge, 1, "total") for edge in EXACT + ROUNDED]
    limits += [(1, 5, "interleaved", 2, "ideal"), (1, 5, "naive", 1, "ideal")]
    limits += [(2, 50, "naive", 1, "total"), (7, rng.randrange(35, 60), "zb_h1", 1, "ideal")]
    limits += [(6, 130, "gpipe", 1, "ideal")]
    for to, schedule in itertools.product(("total", "ideal"), SCHEDULES):
        p, v = rng.randrange(4, 9), rng.randrange(2, 5) if schedule == "interleaved" else 1
        bubbles.append((p, p * rng.randrange(2, 5), schedule, v, to))
        limits.append((p, rng.choice((3, 6, 9, 11, 13)), schedule, v, to))
        if schedule in ("1f1b", "gpipe"):
            bubbles.append((p, rng.randrange(2, p), schedule, v, to))
    bubbles += [(1, rng.randrange(1, 9), "1f1b", 1, "total"), (1, 3, "zb_h1", 1, "ideal")]
    asked = [(BUBBLE, "m=", "", each) for each in bubbles]
    asked += [(FEWEST, "at most ", "%", each) for each in limits]
    return [
        Case(
            f"p={p}, {before}{x}{after}, {schedule}, {v} stages per rank, relative to {to}",
            *(p, x, schedule, v, to),
            function=function,
            known=function,
        )
        for function, before, after, (p, x, schedule, v, to) in asked
    ]


def idle(p: int, m: int, schedule: str, v: int) -> Fraction:
    """Idle time / working time, by the calculator: exact, also for an m that cannot be."""
    share = calc.bubble_fraction(p, m * p, schedule, v, "ideal")  # p times the microbatches
    exact = Fraction(float(share)).limit_denominator(10**5)
    return exact if schedule == "naive" else exact * p


def convert(ideal: Fraction, to: str) -> Fraction:
    """x relative to ideal is x / (1 + x) relative to total."""
    return ideal / (1 + ideal) if to == "total" else ideal


def idea(idle: Any = idle, convert: Any = convert) -> list[Any]:
    """Both functions, with this idle time and this conversion."""

    def share(p: int, m: int, schedule: str, v: int, to: str) -> Fraction:
        return Fraction(convert(idle(p, m, schedule, v), to))

    def fewest(p: int, percent: int, schedule: str, v: int, to: str) -> int | None:
        first = p if schedule in ("interleaved", "zb_h1") else 1
        choices = range(first, 1000 * p, p if schedule == "interleaved" else 1)
        enough = lambda m: share(p, m, schedule, v, to) * 100 <= percent  # noqa: E731
        at = bisect_left(choices, True, key=enough)
        return choices[at] if at < len(choices) else None

    return [lambda *args: float(share(*args)), fewest]


RIGHT = dict(zip(FUNCTIONS, idea()))


def right(*args: Any, known: str) -> float | None:
    """By the calculator; the fewest microbatches by trying."""
    answer: float | None = RIGHT[known](*args)
    return answer


def only(schedules: str, other: Callable[[int, int], Any]) -> list[Any]:
    """Both functions, where some schedules have another idle time: other(p, m)."""
    names = schedules.split()
    return idea(lambda p, m, name, v: other(p, m) if name in names else idle(p, m, name, v))


def possible(m: int, p: int, schedule: str) -> int:
    """The next number of microbatches that the schedule can have."""
    if schedule == "interleaved":
        return -(-m // p) * p
    return max(m, p) if schedule == "zb_h1" else m


def rounded(up: Callable[[Fraction], int], possible: Any = possible) -> Any:
    """microbatches_for as a quotient, rounded in this way, and then made possible."""

    def formula(p: int, percent: int, schedule: str, v: int, to: str) -> Any:
        if schedule == "naive":
            return RIGHT[FEWEST](p, percent, schedule, v, to)
        limit = Fraction(percent, 100 - percent if to == "total" else 100)
        return possible(max(up(idle(p, 1, schedule, v) / limit), 1), p, schedule)

    return formula


def any_number_of(schedules: str) -> Any:
    """microbatches_for without regard to what these schedules can have."""
    names = schedules.split()
    return rounded(math.ceil, lambda m, p, name: m if name in names else possible(m, p, name))


def below(*args: Any) -> Any:
    """microbatches_for with a bubble below the limit, except for naive."""
    return rounded(lambda quotient: math.floor(quotient) + 1)(*args)


IDLE = '(p - 1) / {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)'
RETURN = 'return idle / (m if relative_to == "ideal" else m + idle)'
ROUND_UP = "max(-(-(p - 1) * busy // divisor), 1)"
POSSIBLE = "return -(-fewest // p) * p"

MISTAKES = [
    Mistake(
        "confuses the two conventions",
        "(p - 1)/m is relative to ideal, the working time of m microbatches. The total time "
        "includes the bubble: (p - 1)/(m + p - 1). 7/16 and 7/23 are the same bubble.",
        formula=[
            *idea(convert=lambda x, to: x),
            *idea(convert=lambda x, to: x / (1 + x)),
            *idea(convert=lambda x, to: x if to == "total" else x / (1 + x)),
        ],
        made_by=patch(RETURN, "return idle / m"),
    ),
    Mistake(
        "gives percent",
        "The contract is a fraction: 0.25, not 25.",
        hint=3,
        function=BUBBLE,
        formula=lambda *args: 100 * RIGHT[BUBBLE](*args),
        made_by=patch(RETURN, RETURN.replace("return", "return 100 *")),
    ),
    Mistake(
        "takes the bubble of 1F1B for smaller than GPipe's",
        "1F1B runs the same operations in an order that frees activations early. It saves memory; "
        "fill and drain take as long.",
        formula=only("1f1b", lambda p, m: Fraction(p - 1, 2 * m)),
        made_by=patch(IDLE, f'{IDLE} / (2 if schedule == "1f1b" else 1)'),
    ),
    Mistake(
        "counts 2 m instead of m",
        "A microbatch has a forward and a backward, and so has each of the p - 1 places in fill "
        "and drain: 2 m against 2 (p - 1).",
        hint=2,
        formula=only("gpipe 1f1b", lambda p, m: Fraction(p - 1, 2 * m)),
        made_by=patch(IDLE, f'{IDLE} / (2 if schedule in ("gpipe", "1f1b") else 1)'),
    ),
    Mistake(
        "counts p instead of p - 1",
        "The last rank starts after p - 1 others. One rank alone is never idle.",
        hint=3,
        formula=idea(lambda p, m, name, v: (p - 1) if name == "naive" else idle(p + 1, m, name, v)),
        made_by=patch(IDLE, IDLE.replace("p - 1", "p")),
    ),
    Mistake(
        "counts min(p, m) - 1 instead of p - 1",
        "With fewer microbatches than ranks each still passes through p - 1 other ranks, so fill "
        "and drain take p - 1 there too.",
        hint=2,
        formula=only("gpipe 1f1b", lambda p, m: Fraction(min(p, m) - 1, m)),
        made_by=patch(IDLE, IDLE.replace("p - 1", "min(p, m) - 1")),
    ),
    Mistake(
        "forgets the virtual stages",
        "Each of v stages has a v-th of the layers, so fill and drain take a v-th of the time: "
        "(p - 1)/(v m) of ideal.",
        hint=2,
        formula=only("interleaved", lambda p, m: Fraction(p - 1, m)),
        made_by=patch(IDLE, IDLE.replace("virtual", "1")),
    ),
    Mistake(
        "gives ZB-H1 no bubble",
        "ZB-H1 has the memory of 1F1B. W cannot fill the I of the way back, p - 1 of them. No "
        "bubble at all needs more memory (ZB-H2).",
        formula=only("zb_h1", lambda p, m: 0),
        made_by=patch(IDLE, f'{IDLE} * (schedule != "zb_h1")'),
    ),
    Mistake(
        "gives ZB-H1 the bubble of 1F1B, or half of it",
        "No rank waits for W, so W runs where a rank would be idle. Of F, I and W one is left: "
        "(p - 1)/(3 m) of ideal.",
        formula=[
            *only("zb_h1", lambda p, m: Fraction(p - 1, m)),
            *only("zb_h1", lambda p, m: Fraction(p - 1, 2 * m)),
        ],
        made_by=patch(IDLE, IDLE.replace('"zb_h1": 3', "")),
    ),
    Mistake(
        "takes naive for a pipeline",
        "With one microbatch at a time the next one starts when the last one is back. One rank of "
        "p works, and more microbatches do not help.",
        formula=only("naive", lambda p, m: Fraction(p - 1, m)),
        made_by=patch("idle = (p - 1) * m", "pass"),
    ),
    Mistake(
        "rounds down",
        "With one microbatch fewer than the quotient rounded up the bubble is over the limit.",
        hint=3,
        formula=[
            rounded(math.floor),
            rounded(
                math.floor,
                lambda m, p, name: (
                    max(m // p, 1) * p if name == "interleaved" else possible(m, p, name)
                ),
            ),
        ],
        made_by=patch(ROUND_UP, ROUND_UP.replace("-(-", "(")),
    ),
    Mistake(
        "allows less than the limit",
        "The bubble may equal the limit: at most, not below.",
        hint=3,
        formula=[
            below,
            lambda *args: below(*args) if "naive" not in args or args[0] == 1 else None,
        ],
        made_by=patch(ROUND_UP, "(p - 1) * busy // divisor + 1"),
    ),
    Mistake(
        "rounds floats",
        "Where the bubble equals the limit, a quotient of floats is often a little too large, and "
        "rounding up gives one microbatch too many. Compare whole numbers.",
        hint=3,
        seen=lambda s: s.args[:3] in ROUNDED and abs(s.y - s.right[0]) == 1,
        made_by=patch(ROUND_UP, "max(int(-(-(p - 1) * (busy / 100) // (divisor / 100))), 1)"),
    ),
    Mistake(
        "forgets which numbers of microbatches a schedule can have",
        "An interleaved schedule needs a multiple of p, and ZB-H1 needs p or more.",
        hint=3,
        formula=[
            any_number_of("interleaved zb_h1"),
            any_number_of("interleaved"),
            any_number_of("zb_h1"),
        ],
        made_by=patch(POSSIBLE, "return fewest", "max(fewest, p) if", "fewest if"),
    ),
    Mistake(
        "returns a number for naive",
        "The bubble of naive does not depend on m: (p - 1)/p of total. If that is over the limit, "
        "no number of microbatches is enough, and the answer is None.",
        hint=2,
        formula=lambda *args: RIGHT[FEWEST](*args) or 1,
        function=FEWEST,
        made_by=patch("<= percent else None", "<= percent else 1"),
    ),
]

GRADER = Questions(
    name="bubble_fraction",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc", "labkit.pipeline"),
    shown="you know the bubble of five schedules by both conventions, and to the microbatch how "
    "many keep it within a limit",
)
