"""Grade scaling_efficiency: two measured steps, the most ranks for an efficiency, Gustafson."""

import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

FUNCTIONS = STRONG, WEAK, SERIAL, MOST, SCALED = (
    "strong_efficiency",
    "weak_efficiency",
    "serial_share",
    "most_ranks",
    "scaled_speedup",
)
# (permille, percent). The efficiency is reached exactly, with exact quotients of floats or without.
EXACT = [(10, 50), (1, 50), (125, 80), (100, 20), (50, 20), (10, 25), (999, 100)]
ROUNDED = [(17, 32), (35, 2), (70, 2), (21, 16)]


def cases(draw: Draw) -> list[Case]:
    """From one rank and from several, efficient and not, above 1 too; some are reached exactly."""
    rng, asked = draw.rng, []
    for function in STRONG, WEAK, SERIAL:
        for base, times in ((1, 4), (1, 64), (8, 8), (3, 5), (16, 2)):
            n, share, base_s = base * times, rng.uniform(0.02, 0.4), rng.uniform(0.5, 4)
            if function == WEAK:
                n_s = base_s * rng.uniform(1.02, 2.5)
            else:
                n_s = base_s * (share + (1 - share) / n) / (share + (1 - share) / base)
            label = f"{base_s:.3g} s on {base}, {n_s:.3g} s on {n} ranks"
            asked.append(Case(label, base, base_s, n, n_s, function=function, known=function))
    for function in STRONG, WEAK:  # caches, for one
        label = "4 s on 2, 0.9 s or less on 8 ranks"
        n_s = 0.9 if function == STRONG else 3.6
        asked.append(Case(label, 2, 4.0, 8, n_s, function=function, known=function))
    drawn = [(rng.randrange(2, 200), rng.randrange(30, 95)) for _ in range(12)]
    for permille, percent in EXACT + ROUNDED + drawn:
        label = f"serial share {permille}/1000, efficiency of at least {percent}%"
        asked.append(Case(label, permille, percent, function=MOST, known=MOST))
    for share, n in ((0.1, 8), (rng.uniform(0.02, 0.6), rng.randrange(3, 999)), (0.0, 5), (0.3, 1)):
        label = f"serial share {share:.3g} of a run on {n} ranks"
        asked.append(Case(label, share, n, function=SCALED, known=SCALED))
    return asked


def right(*args: Any, known: str) -> float:
    """Exactly, in fractions."""
    if known == MOST:
        return bisect_left(range(1, 100_000), True, key=lambda n: not is_enough(n, *args))
    if known == SCALED:
        return float(args[1] - Fraction(args[0]) * (args[1] - 1))
    base, base_s, n, n_s = map(Fraction, args)
    if known != SERIAL:
        work = 1 if known == STRONG else n / base
        return float(work / n_s / n / (1 / base_s / base))
    # base * T(base) = parallel + base * serial, and so for n.
    serial = (n * n_s - base * base_s) / (n - base)
    return float(serial / (base * base_s - (base - 1) * serial))


def is_enough(n: int, permille: int, percent: int) -> bool:
    """Whether n ranks are at least so efficient: 1 / (1 + (n - 1) s)."""
    return percent * (1000 + (n - 1) * permille) <= 100 * 1000


def ratio(permille: int, percent: int) -> Fraction:
    """How many ranks there may be besides the first, before rounding."""
    return Fraction((100 - percent) * 1000, percent * permille)


def times(of: str, factor: Callable[..., float]) -> Callable[..., float]:
    """A formula: the right answer of a function, times this factor of the arguments."""
    return lambda *args: right(*args, known=of) * factor(*args)


MISTAKES = [
    Mistake(
        "takes the base for one rank",
        "The base has more than one rank, so n ranks are n / base times as many: the ideal time is "
        "base_s * base / n.",
        function=STRONG,
        formula=times(STRONG, lambda base, base_s, n, n_s: 1 / base),
        made_by=patch("base * base_s / (n * n_s)", "base_s / (n * n_s)"),
    ),
    Mistake(
        "gives the speedup",
        "base_s / n_s says how many times faster the step is. The efficiency divides this by how "
        "many times more ranks there are.",
        function=STRONG,
        formula=lambda base, base_s, n, n_s: base_s / n_s,
        made_by=patch("base * base_s / (n * n_s)", "base_s / n_s"),
    ),
    Mistake(
        "gives percent",
        "The contract is a fraction: 0.25, not 25.",
        hint=3,
        formula=[times(of, lambda *args: 100) for of in (STRONG, WEAK, SERIAL)],
        made_by=patch("return base_s / n_s", "return 100 * base_s / n_s"),
    ),
    Mistake(
        "divides weak scaling by the ranks, too",
        "n ranks did n / base times the work. Each had as much to do as a rank of the base, so "
        "the times are compared as they are.",
        function=WEAK,
        formula=[
            lambda base, base_s, n, n_s: base * base_s / (n * n_s),
            lambda base, base_s, n, n_s: base_s / (n * n_s),
        ],
        made_by=patch("return base_s / n_s", "return base * base_s / (n * n_s)"),
    ),
    Mistake(
        "gives the scaled speedup for the efficiency",
        "n ranks do more work in the same time: that is the speedup. The efficiency divides it by "
        "how many times more ranks there are.",
        function=WEAK,
        formula=[
            lambda base, base_s, n, n_s: n / base * base_s / n_s,
            lambda base, base_s, n, n_s: n * base_s / n_s,
        ],
        made_by=patch("return base_s / n_s", "return n / base * base_s / n_s"),
    ),
    Mistake(
        "takes all that is lost for serial work",
        "1 - efficiency grows with the number of ranks. The serial share does not: solve T(n) = "
        "serial + parallel / n for the two.",
        hint=2,
        function=SERIAL,
        formula=[
            lambda *args: 1 - right(*args, known=STRONG),
            lambda base, base_s, n, n_s: n_s / base_s,
        ],
        made_by=patch(
            "return serial / (serial + parallel)", "return 1 - base * base_s / (n * n_s)"
        ),
    ),
    Mistake(
        "takes the serial share of a run on many ranks",
        "Amdahl's share is of one rank's time, serial + parallel. With (1/speedup - 1/k) / "
        "(1 - 1/k) and k = n / base you get the share of base ranks' time, which is larger.",
        hint=2,
        function=SERIAL,
        formula=[
            lambda base, base_s, n, n_s: (n_s / base_s - base / n) / (1 - base / n),
            lambda base, base_s, n, n_s: (n * n_s - base * base_s) / (n - base) / n_s,
        ],
        made_by=patch("return serial / (serial + parallel)", "return serial / base_s"),
    ),
    Mistake(
        "uses the formula for one rank with another base",
        "The metric of Karp and Flatt, (1/speedup - 1/n) / (1 - 1/n), needs the time on one rank. "
        "Where the base has more, solve T(n) = serial + parallel / n.",
        hint=2,
        function=SERIAL,
        formula=lambda base, base_s, n, n_s: (n_s / base_s - 1 / n) / (1 - 1 / n),
        made_by=patch("(1 / base - 1 / n)", "(1 - 1 / n)", "parallel / base\n", "parallel\n"),
    ),
    Mistake(
        "forgets the first rank",
        "(n - 1) s is the loss, so the quotient counts the ranks besides the first.",
        hint=2,
        function=MOST,
        formula=[
            lambda *args: math.floor(ratio(*args)),
            lambda *args: max(1, math.floor(ratio(*args))),
        ],
        made_by=patch("1 + (100 - percent)", "(100 - percent)"),
    ),
    Mistake(
        "takes the efficiency for 1 / (n s)",
        "On one rank the efficiency is 1: it is 1 / (n s + 1 - s), and without the 1 - s there are "
        "too many ranks.",
        hint=2,
        function=MOST,
        formula=lambda permille, percent: 100 * 1000 // (percent * permille),
        made_by=patch("1 + (100 - percent) * 1000", "100 * 1000"),
    ),
    Mistake(
        "gives the largest speedup",
        "1 / s is how many times faster it can get at most, with infinitely many ranks. The "
        "question is where the ranks stop being worth it.",
        function=MOST,
        formula=[
            lambda permille, percent: 1000 // permille,
            lambda permille, percent: percent * 1000 // (100 * permille),
        ],
        made_by=patch("1 + (100 - percent) * 1000 // (percent * permille)", "1000 // permille"),
    ),
    Mistake(
        "rounds up",
        "With one rank more than the quotient rounded down, the efficiency is below `percent`.",
        hint=3,
        function=MOST,
        formula=[
            lambda *args: 1 + math.ceil(ratio(*args)),
            lambda *args: 1 + round(float(ratio(*args))),
            lambda *args: 2 + math.floor(ratio(*args)),
        ],
        made_by=patch(
            "1 + (100 - percent) * 1000 // (percent * permille)",
            "1 - (percent - 100) * 1000 // (percent * permille)",
        ),
    ),
    Mistake(
        "allows less than the efficiency",
        "The efficiency may equal `percent`: at least, not above.",
        hint=3,
        function=MOST,
        formula=[
            lambda *args: math.ceil(ratio(*args)),
            lambda *args: max(1, math.ceil(ratio(*args))),
        ],
        made_by=patch(
            "1 + (100 - percent) * 1000 // (percent * permille)",
            "max(1, 1 + ((100 - percent) * 1000 - 1) // (percent * permille))",
        ),
    ),
    Mistake(
        "rounds floats",
        "Where the efficiency equals `percent`, a quotient of floats is often a little too small, "
        "and rounding down loses a rank. Multiply whole numbers and divide them with //.",
        hint=3,
        seen=lambda s: s.args in ROUNDED and abs(s.y - s.right[0]) == 1,
        made_by=patch(
            "1 + (100 - percent) * 1000 // (percent * permille)",
            "int(1 + (100 / percent - 1) / (permille / 1000))",
        ),
    ),
    Mistake(
        "uses Amdahl's law for a scaled problem",
        "1 / (s + (1 - s) / n) keeps the work as it is. Here the run on n ranks is given: one rank "
        "would need its serial part once and its parallel part n times.",
        function=SCALED,
        formula=lambda share, n: 1 / (share + (1 - share) / n),
        made_by=patch("return share + (1 - share) * n", "return 1 / (share + (1 - share) / n)"),
    ),
    Mistake(
        "multiplies the serial part, too",
        "Serial work is done once, on one rank or on n: the speedup is s + (1 - s) n, which is "
        "n - s (n - 1).",
        hint=2,
        function=SCALED,
        formula=[
            lambda share, n: n,
            lambda share, n: n - share * n,
            lambda share, n: share * n + 1 - share,
        ],
        made_by=patch("return share + (1 - share) * n", "return (1 - share) * n"),
    ),
]

GRADER = Questions(
    name="scaling_efficiency",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.measure",),
    shown="you tell strong from weak scaling, find Amdahl's serial share from any two runs, know "
    "to the rank how many are worth it, and what Gustafson counts instead",
)
