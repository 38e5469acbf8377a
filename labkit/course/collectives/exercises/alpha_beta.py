"""Grade alpha_beta: times by the model, choices, and links fitted to exact and to noisy times."""

import itertools
from collections.abc import Iterator
from typing import Any

from labkit import calc
from labkit.grade import grader as g

ALGORITHMS = ("ring", "tree")
SIZES = [1024 * 4**step for step in range(12)]  # 1 KiB to 4 GiB


def seconds(alpha: float, beta: float, n: int, nbytes: int, algorithm: str) -> float:
    """Return the calculator's seconds."""
    if algorithm == "ring":
        return calc.collective("all_reduce", "ring", n, nbytes).seconds(alpha, beta)
    # A reduction takes as long as a broadcast.
    return 2 * calc.collective("broadcast", "binomial", n, nbytes).seconds(alpha, beta)


def same(got: Any, right: Any, case: g.Case) -> bool:
    """Return whether an answer is as near to the right one as the contract asks.

    A fitted link is compared by the times that it gives for the points.
    """
    within = case.known[1]
    if case.function == "choose":
        return bool(got == right)
    if case.function == "predict":
        return type(got) in (int, float) and abs(got - right) <= within * right
    times, expected = (
        [seconds(alpha, beta, n, nbytes, each) for each, n, nbytes, _ in case.args[0]]
        for alpha, beta in (got, right)
    )
    is_near = all(abs(a - b) <= within * b for a, b in zip(times, expected))
    return is_near and all(type(each) in (int, float) for each in got)


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Times and choices for several n, then points to fit. 5 and 9 ranks tell ceil from round."""
    for algorithm, n in itertools.product(ALGORITHMS, (4, 2, 5, 6, 8, 9, 12, 64)):
        alpha, beta = link(draw)
        asked = alpha, beta, n, round(draw.rng.uniform(1, 4) * alpha / beta)
        known = seconds(*asked, algorithm), 1e-6
        label = f"{algorithm}, {in_words(*asked)}"
        yield g.Case(label, *asked, algorithm, function="predict", known=known)
    for n, scale, exponent in itertools.product((4, 6, 12, 64), (1, 100), range(-6, 11)):
        alpha, beta = link(draw)
        asked = alpha * scale, beta, n, round(alpha * scale / beta * 2**exponent)
        (less, faster), (more, _) = sorted((seconds(*asked, each), each) for each in ALGORITHMS)
        if more > 1.3 * less:
            yield g.Case(in_words(*asked), *asked, function="choose", known=(faster, 0))
    n, noisy = draw.rng.choice((5, 9)), "times of a ring, off by up to 4%"
    yield fit(draw, "exact times of a ring", [("ring", n)])
    yield fit(draw, "exact times of a tree", [("tree", n)])
    yield fit(draw, "exact times of rings and trees", [("ring", 4), ("tree", 4), ("ring", 16)])
    yield fit(draw, noisy, [("ring", n)], 0.04)
    yield fit(draw, noisy, [("ring", 4)], 0.04)
    yield fit(draw, f"a slow link, {noisy}", [("ring", 4)], 0.04, scale=250)


def link(draw: g.Draw, scale: float = 1) -> tuple[float, float]:
    """5 to 20 us and 5 to 40 GB/s, or `scale` times as slow."""
    return draw.rng.uniform(5e-6, 20e-6) * scale, scale / draw.rng.uniform(5e9, 40e9)


def in_words(alpha: float, beta: float, n: int, nbytes: int) -> str:
    """Describe the case."""
    return f"{n} ranks, {nbytes:,} bytes, {alpha = :.4g}, {beta = :.4g}"


def fit(
    draw: g.Draw, label: str, kinds: list[tuple[str, int]], noise: float = 0, scale: float = 1
) -> g.Case:
    """Points of a link. The errors of the two largest take least squares of seconds off."""
    its, points = link(draw, scale), []
    for algorithm, n in kinds:
        errors = [draw.rng.uniform(-noise, noise) for _ in SIZES[2:]] + [-noise, noise]
        for size, error in zip(SIZES, errors):
            points.append((algorithm, n, size, seconds(*its, n, size, algorithm) * (1 + error)))
    draw.rng.shuffle(points)
    return g.Case(label, points, function="fit", known=(its, 0.12 if noise else 1e-3))


RING = "return 2 * (n - 1) * (alpha + nbytes / n * beta)"
TREE = "return 2 * levels * (alpha + nbytes * beta)"
LEVELS, LOG2 = "(n - 1).bit_length()", "__import__('math').log2(n)"
MISTAKES = [
    g.Mistake(
        "does not choose by the two times",
        "A tree has fewer latencies and is faster for small tensors; a ring sends fewer bytes. The "
        "size from which on it is faster depends on alpha, beta and n: compare the predictions.",
        g.patch("ring <= tree", "ring > tree"),
        wrong=lambda s: s.case.function == "choose",
        hint=2,
    ),
    g.Mistake(
        "counts another number of steps",
        "An all-reduce is a reduction and a distribution: n - 1 and n - 1 steps of a ring, "
        "ceil(log2 n) steps up a tree and as many down. The steps come one after the other, and "
        "each costs alpha besides its bytes.",
        [
            g.patch(RING, RING.replace("2 * ", ""), TREE, TREE.replace("2 * ", "")),
            g.patch(RING, "return alpha + 2 * (n - 1) / n * nbytes * beta"),
            g.patch(RING, RING.replace("(n - 1)", "n")),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes other bytes for a step",
        "A ring cuts the tensor into n chunks, and each step sends one of them: D/n bytes. A tree "
        "sends the whole tensor in each step, and a rank sends it on when it has all of it: D beta "
        "is paid as often as alpha.",
        [
            g.patch("nbytes / n * beta", "nbytes * beta"),
            g.patch(TREE, "return 2 * levels * alpha + 2 * nbytes * beta"),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not round log2 n up",
        "Steps are whole, and after floor(log2 n) steps of doubling some ranks have nothing yet. "
        "5 and 6 ranks take 3 steps, 9 ranks take 4: ceil(log2 n), or (n - 1).bit_length().",
        g.patches(LEVELS, f"int({LOG2})", LOG2),
        hint=3,
    ),
    g.Mistake(
        "takes two points for all",
        "The smallest point gives alpha only where its bytes cost nothing, and the largest gives "
        "beta only where its latencies cost nothing. Fit both to all points.",
        g.patch(
            "    xx = xy",
            "    small, *_, large = sorted(points, key=lambda point: point[2])\n"
            "    alpha = small[3] / predict(1.0, 0.0, *small[1:3], small[0])\n"
            "    return alpha, large[3] / predict(0.0, 1.0, *large[1:3], large[0])\n    xx = xy",
        ),
    ),
    g.Mistake(
        "lets the largest size decide",
        "Least squares of seconds looks at the largest times only: a few percent of those are more "
        "than all of alpha, which may come out below 0. Divide each equation by its time: then "
        "errors of the same percentage count alike at every size.",
        g.patch(
            *("n, nbytes, algorithm) / seconds\n        y", "n, nbytes, algorithm)\n        y"),
            *("n, nbytes, algorithm) / seconds\n        xx", "n, nbytes, algorithm)\n        xx"),
            *("x1 + x, y1 + y", "x1 + x * seconds, y1 + y * seconds"),
        ),
    ),
]

GRADER = g.Questions(
    functions=("fit", "predict", "choose"),
    cases=cases,
    right=lambda *args, known: known[0],
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.calc", "labkit.measure"),
    shown="you count the messages and bytes of a ring and of a tree, choose the faster one, and "
    "fit alpha and beta to times with errors, on fast links and on slow ones",
)
