"""Grade alpha_beta: times by the model, choices, and links fitted to exact and to noisy times."""

import itertools
from typing import Any

from labkit import calc
from labkit.grade import grader as g

SIZES = [1024 * 4**step for step in range(12)]  # 1 KiB to 4 GiB
Link = tuple[float, float]
"""alpha and beta."""


def costs(algorithm: str, n: int) -> tuple[float, float]:
    """How many alphas an all-reduce takes, and how many times D * beta, by the calculator."""
    if algorithm == "ring":
        ring = calc.collective("all_reduce", "ring", n)
        return ring.seconds(1, 0), ring.seconds(0, 1)
    tree = calc.collective("broadcast", "binomial", n)  # a reduction takes as long
    return 2 * tree.seconds(1, 0), 2 * tree.seconds(0, 1)


def seconds(alpha: float, beta: float, n: int, nbytes: int, algorithm: str) -> float:
    """What the model says."""
    latencies, share = costs(algorithm, n)
    return latencies * alpha + share * nbytes * beta


def right(*args: Any, known: tuple[Link, float] | None = None) -> Any:
    """The drawn link, a time, or the faster algorithm."""
    if known is not None:
        return known[0]
    if len(args) == 5:
        return seconds(*args)
    return min(("ring", "tree"), key=lambda algorithm: seconds(*args, algorithm))


def same(got: Any, right: Any, case: g.Case) -> bool:
    """Whether an answer is as near to the right one as the contract asks."""
    if case.function == "choose":
        return bool(got == right)
    is_fit = case.function == "fit"
    if isinstance(got, list | tuple) is not is_fit:
        return False
    got, right, within = (got, right, 1e-3) if is_fit else ([got], [right], 1e-6)
    if len(got) != len(right) or any(type(each) not in (int, float) for each in got):
        return False
    if is_fit and case.known[1]:
        within = 0.12
        got, right = (
            [seconds(*link, n, size, each) for each, n, size, _ in case.args[0]]
            for link in (got, right)
        )
    return all(abs(a - b) <= within * abs(b) for a, b in zip(got, right))


def cases(draw: g.Draw) -> list[g.Case]:
    """Times and choices for several n, then points to fit. 5 and 9 ranks tell ceil from round."""
    asked = []
    for algorithm in "ring", "tree":
        for n in 4, 2, 5, 6, 8, 9, 12, 64:
            alpha, beta = drawn(draw)
            nbytes = draw.rng.uniform(1, 4) * alpha / beta
            asked.append(question("predict", alpha, beta, n, nbytes, algorithm))
    # Sizes on both sides of the one where ring and tree are equally fast, near and far.
    for n, scale in itertools.product((4, 6, 12, 64), (1, 100)):
        alpha, beta = drawn(draw)
        (more, less), (fewer, larger) = costs("ring", n), costs("tree", n)
        equal = (more - fewer) * alpha * scale / ((larger - less) * beta)
        for factor in 1 / 100, 1 / 8, 1 / 4, 3, 8, 100:
            asked.append(question("choose", alpha * scale, beta, n, equal * factor))
    n, noisy = draw.rng.choice((5, 9)), "times of a ring, off by up to 4%"
    return [
        *asked,
        fit(draw, "exact times of a ring", [("ring", n)]),
        fit(draw, "exact times of a tree", [("tree", n)]),
        fit(draw, "exact times of rings and trees", [("ring", 4), ("tree", 4), ("ring", 16)]),
        fit(draw, noisy, [("ring", n)], 0.04),
        fit(draw, noisy, [("ring", 4)], 0.04),
        fit(draw, f"a slow link, {noisy}", [("ring", 4)], 0.04, scale=250),
    ]


def drawn(draw: g.Draw, scale: float = 1) -> Link:
    """5 to 20 us and 5 to 40 GB/s, or `scale` times as slow."""
    return draw.rng.uniform(5e-6, 20e-6) * scale, scale / draw.rng.uniform(5e9, 40e9)


def question(
    function: str, alpha: float, beta: float, n: int, nbytes: float, *algorithm: str
) -> g.Case:
    """About one all-reduce."""
    about = f"{n} ranks, {nbytes:,.0f} bytes, {alpha = :.4g}, {beta = :.4g}"
    asked = alpha, beta, n, round(nbytes), *algorithm
    return g.Case(", ".join([*algorithm, about]), *asked, function=function)


def fit(
    draw: g.Draw, label: str, kinds: list[tuple[str, int]], noise: float = 0, scale: float = 1
) -> g.Case:
    """Points of a link. The errors of the two largest take least squares of seconds off."""
    link, points = drawn(draw, scale), []
    for algorithm, n in kinds:
        errors = [draw.rng.uniform(-noise, noise) for _ in SIZES[2:]] + [-noise, noise]
        for size, error in zip(SIZES, errors):
            points.append((algorithm, n, size, seconds(*link, n, size, algorithm) * (1 + error)))
    draw.rng.shuffle(points)
    return g.Case(label, points, function="fit", known=(link, noise))


RING = "return 2 * (n - 1) * (alpha + nbytes / n * beta)"
TREE = "return 2 * levels * (alpha + nbytes * beta)"
LEVELS, LOG2 = "(n - 1).bit_length()", "__import__('math').log2(n)"
X, Y = (f"predict({link}, n, nbytes, algorithm) / seconds" for link in ("1.0, 0.0", "0.0, 1.0"))
ONE, ALPHA = "return alpha + nbytes * beta", "(x1 * yy - y1 * xy) / determinant"


MISTAKES = [
    g.Mistake(
        "does not choose by the two times",
        "A tree has fewer latencies and is faster for small tensors; a ring sends fewer bytes. The "
        "size from which on it is faster depends on alpha, beta and n: compare the predictions.",
        g.patch("ring <= tree", "ring > tree"),
        seen=lambda s: s.case.function == "choose",
        hint=2,
    ),
    g.Mistake(
        "counts another number of steps",
        "An all-reduce is a reduction and a distribution: n - 1 and n - 1 steps of a ring. In a "
        "tree the ranks that have been reached double: ceil(log2 n) steps up and as many down.",
        [
            g.patch(RING, RING.replace("2 * ", ""), TREE, TREE.replace("2 * ", "")),
            g.patch(RING, RING.replace("(n - 1)", "n"), LEVELS, "n - 1"),
        ],
        hint=2,
    ),
    g.Mistake(
        "pays for too few latencies",
        "Every message costs alpha besides its bytes, and those of a collective come one after the "
        "other: as many alphas as there are steps. alpha + D beta is one message.",
        [
            g.patch(RING, ONE, TREE, ONE),
            *(
                g.patch(
                    *(RING, f"return {k} * alpha + 2 * (n - 1) / n * nbytes * beta"),
                    *(TREE, f"return {k} * alpha + 2 * levels * nbytes * beta"),
                )
                for k in (0, 1, 2)
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes beta for something else",
        "beta is seconds per byte, one over the bandwidth: bytes are multiplied by it. nbytes are "
        "bytes; only the speeds of networks are given in bits.",
        [
            g.patch(RING, RING.replace("* beta", times), TREE, TREE.replace("* beta", times))
            for times in ("/ beta", "* 8 * beta", "* beta / 8")
        ],
        hint=3,
    ),
    g.Mistake(
        "takes other bytes for a step",
        "A ring cuts the tensor into n chunks, and each step sends one of them: D/n bytes. A tree "
        "sends the whole tensor in each step, and a rank sends it on when it has all of it: D beta "
        "is paid as often as alpha.",
        [
            g.patch("nbytes / n * beta", "nbytes * beta"),
            *(
                g.patch(TREE, f"return 2 * levels * alpha + {times} * nbytes * beta")
                for times in ("2 * levels / n", "2", "1")
            ),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not round log2 n up",
        "Steps are whole, and after floor(log2 n) steps of doubling some ranks have nothing yet. "
        "5 and 6 ranks take 3 steps, 9 ranks take 4: ceil(log2 n), or (n - 1).bit_length().",
        [g.patch(LEVELS, levels) for levels in (f"int({LOG2})", f"round({LOG2})", LOG2)],
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
        [
            g.patch(
                *(X, X.removesuffix(" / seconds"), Y, Y.removesuffix(" / seconds")),
                *("x1 + x, y1 + y", "x1 + x * seconds, y1 + y * seconds", ALPHA, alpha),
            )
            for alpha in (ALPHA, f"max({ALPHA}, 0.0)")
        ],
    ),
]

GRADER = g.Questions(
    functions=("fit", "predict", "choose"),
    cases=cases,
    right=right,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.calc", "labkit.measure"),
    shown="you count the messages and bytes of a ring and of a tree, choose the faster one, and "
    "fit alpha and beta to times with errors, on fast links and on slow ones",
)
