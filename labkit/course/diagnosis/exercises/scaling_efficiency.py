"""Grade scaling_efficiency: two measured steps, the most ranks for an efficiency, Gustafson."""

import itertools
from fractions import Fraction

from labkit.grade import grader as g

FUNCTIONS = ("strong_efficiency", "weak_efficiency", "serial_share", "most_ranks", "scaled_speedup")
STRONG, WEAK, SERIAL, MOST, SCALED = FUNCTIONS
# (permille, percent). The efficiency is reached exactly, with floats that are exact or are not.
EXACT = [(125, 50), (250, 50), (500, 50), (125, 25), (250, 25), (500, 25)]
ROUNDED = [(17, 32), (35, 2), (70, 2), (21, 16), (10, 50), (1, 50), (125, 80), (100, 20)]
ROUNDED += [(50, 20), (10, 25), (999, 100), (85, 32), (42, 16), (1, 80), (1, 1)]


def cases(draw: g.Draw) -> list[g.Case]:
    """Return cases from one rank and from several, with efficiencies below and above 1.

    Some limits are reached exactly.
    """
    rng, asked = draw.rng, []
    for base, times in ((1, 4), (1, 64), (8, 8), (3, 5), (16, 2)):
        n, share, base_s = base * times, rng.uniform(0.02, 0.4), rng.uniform(0.5, 4)
        n_s = base_s * (share + (1 - share) / n) / (share + (1 - share) / base)
        asked += [(function, base, base_s, n, n_s) for function in (STRONG, SERIAL)]
        asked += [(WEAK, base, base_s, n, base_s * rng.uniform(1.02, 2.5))]
    asked += [(STRONG, 2, 4.0, 8, 0.9), (WEAK, 2, 4.0, 8, 3.6)]  # above 1, by caches for example
    drawn = [(rng.randrange(2, 200), rng.randrange(30, 95)) for _ in range(12)]
    asked += [(MOST, *pair) for pair in EXACT + ROUNDED + drawn]
    shares = [(0.1, 8), (rng.uniform(0.02, 0.6), rng.randrange(3, 999)), (0.0, 5), (0.3, 1)]
    asked += [(SCALED, *pair) for pair in shares]
    labels = dict.fromkeys(FUNCTIONS, "{1:.3g} s on {0}, {3:.3g} s on {2} ranks") | {
        MOST: "serial share {}/1000, efficiency of at least {}%",
        SCALED: "serial share {:.3g} of a run on {} ranks",
    }
    return [
        g.Case(labels[name].format(*args), *args, function=name, known=name)
        for name, *args in sorted(asked, key=lambda each: FUNCTIONS.index(each[0]))
    ]


def right(*args: float, known: str) -> float:
    """Compute the answer exactly, in fractions."""
    if known == MOST:
        permille, percent = args
        return next(n for n in itertools.count(1) if percent * (1000 + n * permille) > 100_000)
    if known == SCALED:
        return float(args[1] - Fraction(args[0]) * (args[1] - 1))
    base, base_s, n, n_s = map(Fraction, args)
    if known != SERIAL:
        work = 1 if known == STRONG else n / base
        return float(work / n_s / n / (1 / base_s / base))
    # base * T(base) = parallel + base * serial, and n * T(n) = parallel + n * serial.
    serial = (n * n_s - base * base_s) / (n - base)
    return float(serial / (base * base_s - (base - 1) * serial))


def is_reached(permille: int, percent: int) -> bool:
    """Return whether some number of ranks has exactly this efficiency."""
    return (100 - percent) * 1000 % (percent * permille) == 0


EFFICIENCY, SHARE = "base * base_s / (n * n_s)", "serial / (serial + parallel)"
QUOTIENT = "(100 - percent) * 1000 // (percent * permille)"
MOST_RANKS = f"1 + {QUOTIENT}"
MISTAKES = [
    g.Mistake(
        "divides the speedup by another number of ranks",
        "base_s / n_s is the speedup, how many times faster the step is. Divide it by how many "
        "times more ranks there are, n / base.",
        g.patches(EFFICIENCY, "base_s / (n * n_s)", "base_s / n_s"),
    ),
    g.Mistake(
        "does not compare the times of weak scaling as they are",
        "n ranks did n / base times the work, and each as much as a rank of the base. Ideally the "
        "time stays the same: base_s / n_s is the efficiency. n / base times that is the scaled "
        "speedup.",
        g.patches("return base_s / n_s", f"return {EFFICIENCY}", "return n / base * base_s / n_s"),
    ),
    g.Mistake(
        "finds the serial share without Amdahl's two parts",
        "Solve T(n) = serial + parallel / n for the two: the share is of serial + parallel, one "
        "rank's time. 1 - efficiency grows with the number of ranks. The formula of Karp and "
        "Flatt, (1/speedup - 1/k) / (1 - 1/k), needs the time on one rank: with k = n / base it "
        "gives the share of base ranks' time.",
        g.patches(
            SHARE, f"1 - {EFFICIENCY}", "serial / base_s", "(n_s / base_s - 1 / n) / (1 - 1 / n)"
        ),
        hint=2,
    ),
    g.Mistake(
        "forgets the first rank",
        "On one rank the efficiency is 1: it is 1 / (1 + (n - 1) s). (n - 1) s is the loss, so the "
        "quotient counts the ranks besides the first.",
        g.patches(MOST_RANKS, QUOTIENT, "100 * 1000 // (percent * permille)"),
        hint=2,
    ),
    g.Mistake(
        "rounds another way",
        "Round the quotient down: with one rank more the efficiency is below `percent`. It may "
        "equal `percent`: at least, not above.",
        g.patches(
            MOST_RANKS,
            "1 - (percent - 100) * 1000 // (percent * permille)",
            f"2 + {QUOTIENT}",
            "max(1, 1 + ((100 - percent) * 1000 - 1) // (percent * permille))",
        ),
        hint=3,
    ),
    g.Mistake(
        "rounds floats",
        "Where the efficiency equals `percent`, a quotient of floats is often a little too small, "
        "and rounding down loses a rank. Multiply whole numbers and divide them with //.",
        g.patch(MOST_RANKS, "int(1 + (100 / percent - 1) / (permille / 1000))"),
        wrong=lambda s: s.args not in EXACT and is_reached(*s.args) and abs(s.y - s.right[0]) == 1,
        hint=3,
    ),
    g.Mistake(
        "counts other work than Gustafson",
        "The run on n ranks is given. One rank would need its serial part once and its parallel "
        "part n times: s + (1 - s) n. 1 / (s + (1 - s) / n) is Amdahl's law, for work that stays "
        "the same.",
        g.patch("share + (1 - share) * n", "1 / (share + (1 - share) / n)"),
    ),
]

GRADER = g.Questions(
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.measure",),
    shown="you tell strong from weak scaling, find Amdahl's serial share from any two runs, know "
    "to the rank how many are worth it, and what Gustafson counts instead",
)
