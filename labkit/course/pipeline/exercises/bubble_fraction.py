"""Grade bubble_fraction: five schedules by two conventions, and the microbatches for a limit."""

import itertools
from bisect import bisect_left
from fractions import Fraction

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Questions, patch, patches

SCHEDULES = ("1f1b", "gpipe", "zb_h1", "naive", "interleaved")
FUNCTIONS = BUBBLE, FEWEST = "bubble", "microbatches_for"
# Limits that are reached exactly, with quotients that are exact in floats too, and that are not.
EXACT = [(4, 25, "1f1b"), (3, 50, "gpipe"), (5, 20, "1f1b"), (6, 25, "gpipe"), (7, 50, "zb_h1")]
ROUNDED = [(4, 12, "1f1b"), (7, 6, "gpipe"), (8, 35, "gpipe"), (8, 7, "1f1b"), (8, 7, "zb_h1")]
ROUNDED += [(5, 16, "zb_h1"), (6, 4, "zb_h1"), (8, 1, "zb_h1"), (12, 11, "gpipe"), (16, 6, "1f1b")]


def cases(draw: Draw) -> list[Case]:
    """Return each schedule by both conventions, few microbatches, one rank, limits reached
    exactly."""
    rng = draw.rng
    bubbles = [(1, rng.randrange(1, 9), "1f1b", 1, "total"), (1, 3, "zb_h1", 1, "ideal")]
    limits = [(*edge, 1, "total") for edge in EXACT + ROUNDED]
    limits += [(7, rng.randrange(35, 60), "zb_h1", 1, "ideal"), (6, 130, "gpipe", 1, "ideal")]
    # Rounding up to a multiple of p matters in the second.
    limits += [(1, 5, "interleaved", 2, "ideal"), (5, 9, "interleaved", 2, "total")]
    limits += [(1, 5, "naive", 1, "ideal"), (2, 50, "naive", 1, "total")]
    limits += [(3, 70, "naive", 1, "total")]
    for to, schedule in itertools.product(("total", "ideal"), SCHEDULES):
        p, v = rng.randrange(4, 9), rng.randrange(2, 5) if schedule == "interleaved" else 1
        bubbles.append((p, p * rng.randrange(2, 5), schedule, v, to))
        limits.append((p, rng.choice((9, 11, 13, 17, 19)), schedule, v, to))
        if schedule in ("1f1b", "gpipe"):
            bubbles.append((p, rng.randrange(2, p), schedule, v, to))
    return [
        Case(
            f"p={p}, {words.format(x)}, {schedule}, {v} stages per rank, relative to {to}",
            *(p, x, schedule, v, to),
            function=function,
            known=function,
        )
        for function, words, asked in ((BUBBLE, "m={}", bubbles), (FEWEST, "at most {}%", limits))
        for p, x, schedule, v, to in asked
    ]


def right(p: int, x: int, schedule: str, v: int, to: str, known: str) -> float | None:
    """By the calculator; the fewest microbatches by trying."""

    def share(m: int) -> Fraction:
        return Fraction(float(calc.bubble_fraction(p, m, schedule, v, to))).limit_denominator(10**5)

    if known == BUBBLE:
        return float(share(x))
    first = p if schedule in ("interleaved", "zb_h1") else 1
    choices = range(first, 1000 * p, p if schedule == "interleaved" else 1)
    at = bisect_left(choices, True, key=lambda m: share(m) * 100 <= x)
    return choices[at] if at < len(choices) else None


IDLE = '(p - 1) / {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)'
RETURN = 'return idle / (m if relative_to == "ideal" else m + idle)'
BUSY = '100 if relative_to == "ideal" else 100 - percent'
QUOTIENT = "(p - 1) * busy // divisor"
ROUND_UP = f"max(-(-{QUOTIENT}), 1)"
MULTIPLE = "return -(-fewest // p) * p"

MISTAKES = [
    Mistake(
        "confuses the two conventions",
        "(p - 1)/m is relative to ideal, the working time of m microbatches. The total time "
        "includes the bubble: (p - 1)/(m + p - 1). 7/16 and 7/23 are the same bubble.",
        [
            *patches(RETURN, "return idle / m", RETURN.replace("ideal", "total")),
            *patches(BUSY, "100", "100 - percent"),
        ],
    ),
    Mistake(
        "counts another fill and drain than p - 1",
        "The last rank starts after p - 1 others, also with fewer microbatches than ranks, and one "
        "rank alone is never idle. Each of these p - 1 places has a forward and a backward. 1F1B "
        "only runs them in another order: that saves memory, and fill and drain take as long.",
        [
            patch(IDLE, f"{IDLE} / (2 if schedule == '1f1b' else 1)"),
            *patches(IDLE, *(IDLE.replace("p - 1", other) for other in ("p", "min(p, m) - 1"))),
        ],
        hint=2,
    ),
    Mistake(
        "does not divide the idle time by the virtual stages",
        "Each of v stages has a v-th of the layers, so fill and drain take a v-th of the time: "
        "(p - 1)/(v m) of ideal. Divide the idle time, not the fraction of the total.",
        [
            patch(IDLE, IDLE.replace("virtual", "1")),
            patch(
                RETURN,
                'if (schedule, relative_to) == ("interleaved", "total"):\n'
                f"        return (p - 1) / (m + p - 1) / virtual\n    {RETURN}",
            ),
        ],
        hint=2,
    ),
    Mistake(
        "gives ZB-H1 another bubble than a third of that of 1F1B",
        "No rank waits for W, so W runs where a rank would be idle. Of F, I and W one is left, "
        "since W cannot fill the I of the way back: (p - 1)/(3 m) of ideal. No bubble at all needs "
        "more memory (ZB-H2).",
        patches(IDLE, *(IDLE.replace("3", x) for x in ("1", "1.5", "2", "float('inf')"))),
    ),
    Mistake(
        "gives naive the answer of a pipeline, or None for each limit",
        "With one microbatch at a time the next one starts when the last one is back: the bubble "
        "is (p - 1)/p of total for any m. Only if one microbatch is not enough, return None.",
        [patch("idle = (p - 1) * m", "pass"), patch("(p - 1) * busy <= percent", "p == 1")],
    ),
    Mistake(
        "rounds down, or up where the limit is reached exactly",
        "Round the quotient up: with one microbatch fewer the bubble is over the limit. Add none "
        "where it is a whole number: the bubble may equal the limit.",
        [
            *patches(ROUND_UP, f"max({QUOTIENT}, 1)", f"{QUOTIENT} + 1"),
            patch("busy <= percent", "busy < percent"),
            patch(MULTIPLE, "return max(fewest // p, 1) * p"),
        ],
        hint=3,
    ),
    Mistake(
        "rounds floats",
        "Where the bubble equals the limit, a quotient of floats is often a little too large, and "
        "rounding up gives one microbatch too many. Compare whole numbers.",
        [
            patch(ROUND_UP, "max(int(-(-(p - 1) * (busy / 100) // (divisor / 100))), 1)"),
            patch(
                ROUND_UP,
                "max(int(-((1 - p) * (100 / percent - (busy < 100)) // (divisor / percent))), 1)",
            ),
        ],
        wrong=lambda s: s.args[:3] in ROUNDED and abs(s.y - s.right[0]) == 1,
        hint=3,
    ),
    Mistake(
        "forgets which numbers of microbatches a schedule can have",
        "An interleaved schedule needs a multiple of p, and ZB-H1 needs p or more.",
        [patch(MULTIPLE, "return fewest"), patch("max(fewest, p) if", "fewest if")],
        hint=3,
    ),
]

GRADER = Questions(
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc", "labkit.pipeline"),
    shown="you know the bubble of five schedules, and how many microbatches keep it in a limit",
)
