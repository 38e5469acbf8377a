"""Grade alpha_beta: times by the model, choices, and links fitted to exact and to noisy times."""

import math
from collections.abc import Callable
from typing import Any

import torch

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

SIZES = [1024 * 4**step for step in range(12)]  # 1 KiB to 4 GiB
NOISE, WORST, MARGIN = 0.04, 0.12, 1.3
Cost = Callable[[int], tuple[float, float]]
"""By n: how many alphas an all-reduce takes, and how many times D * beta."""


def ring(n: int) -> tuple[float, float]:
    """By the calculator."""
    asked = calc.collective("all_reduce", "ring", n)
    return asked.seconds(1, 0), asked.seconds(0, 1)


def tree(n: int) -> tuple[float, float]:
    """A broadcast, and a reduction that takes as long."""
    one_way = calc.collective("broadcast", "binomial", n)
    return 2 * one_way.seconds(1, 0), 2 * one_way.seconds(0, 1)


def model(ring: Cost = ring, tree: Cost = tree) -> Callable[..., Any]:
    """What predict and fit, told apart by their arguments, answer if these are the costs."""
    costs = {"ring": ring, "tree": tree}

    def answer(*args: Any) -> Any:
        if len(args) == 1:
            return fitted(args[0], costs)
        alpha, beta, n, nbytes, algorithm = args
        latencies, share = costs[algorithm](n)
        return latencies * alpha + share * nbytes * beta

    return answer


def fitted(points: list[Any], costs: dict[str, Cost], power: int = 1) -> tuple[float, float]:
    """Least squares of errors divided by seconds**power."""
    rows = []
    for algorithm, n, nbytes, seconds in points:
        latencies, share = costs[algorithm](n)
        rows.append([each / seconds**power for each in (latencies, share * nbytes, seconds)])
    table = torch.tensor(rows, dtype=torch.float64)
    scale = table[:, :2].abs().amax(dim=0).clamp(min=1e-300)
    solved = torch.linalg.lstsq(table[:, :2] / scale, table[:, 2:], driver="gelsd").solution
    alpha, beta = (solved[:, 0] / scale).tolist()
    return alpha, beta


def right(*args: Any, known: tuple[float, float, bool] | None = None) -> Any:
    """The drawn link, a time, or the faster algorithm."""
    if known is not None:
        return known[:2]
    if len(args) == 5:
        return model()(*args)
    return min(("ring", "tree"), key=lambda algorithm: model()(*args, algorithm))


def same(got: Any, right: Any, case: Case) -> bool:
    """Whether an answer is as near to the right one as the contract asks."""
    if case.function == "choose":
        return bool(got == right)
    if case.function == "predict":
        return type(got) in (int, float) and abs(got - right) <= 1e-6 * abs(right)
    if len(got) != 2 or any(type(each) not in (int, float) for each in got):
        return False
    if case.known[2]:
        return all(abs(a - b) <= 1e-3 * abs(b) for a, b in zip(got, right, strict=True))
    times = [
        [model()(*link, n, size, a) for link in (got, right)] for a, n, size, _ in case.args[0]
    ]
    return all(abs(time - wanted) <= WORST * abs(wanted) for time, wanted in times)


def cases(draw: Draw) -> list[Case]:
    """Times and choices for several n, then points to fit."""
    return [*times(draw), *choices(draw), *fits(draw)]


def draw_link(draw: Draw, scale: float = 1) -> tuple[float, float]:
    """5 to 20 us and 5 to 40 GB/s, or `scale` times as slow."""
    return draw.rng.uniform(5e-6, 20e-6) * scale, scale / draw.rng.uniform(5e9, 40e9)


def times(draw: Draw) -> list[Case]:
    """Sizes at which latencies and bytes take about the same time. 5 and 9 tell ceil from round."""
    asked = []
    for algorithm, cost in ("ring", ring), ("tree", tree):
        for n in 4, 2, 5, 6, 8, 9, 12, 64:
            (alpha, beta), (latencies, share) = draw_link(draw), cost(n)
            nbytes = round(draw.rng.uniform(0.5, 2) * latencies * alpha / (share * beta)) + 1
            label = (
                f"{algorithm}, {n} ranks, {nbytes:,} bytes, alpha = {alpha:.4g}, beta = {beta:.4g}"
            )
            asked.append(Case(label, alpha, beta, n, nbytes, algorithm, function="predict"))
    return asked


def choices(draw: Draw) -> list[Case]:
    """Sizes on both sides of the one where ring and tree are equally fast, near and far."""
    asked = []
    for n in 4, 6, 12, 64:
        for scale in 1, 100:
            alpha, beta = draw_link(draw)
            alpha *= scale
            (more, less), (fewer, larger) = ring(n), tree(n)
            equal = (more - fewer) * alpha / ((larger - less) * beta)
            for factor in 1 / 100, 1 / 8, 1 / 3, 3, 8, 100:
                nbytes = round(equal * factor)
                both = [model()(alpha, beta, n, nbytes, each) for each in ("ring", "tree")]
                if max(both) >= MARGIN * min(both):
                    label = f"{n} ranks, {nbytes:,} bytes, alpha = {alpha:.4g}, beta = {beta:.4g}"
                    asked.append(Case(label, alpha, beta, n, nbytes, function="choose"))
    return asked


def fits(draw: Draw) -> list[Case]:
    """Exact points of one kind and of several; points with errors, on fast and slow links."""
    n = draw.rng.choice((5, 9))
    return [
        fit(draw, "exact times of a ring", [("ring", n)]),
        fit(draw, "exact times of a tree", [("tree", n)]),
        fit(draw, "exact times of rings and trees", [("ring", 4), ("tree", 4), ("ring", 16)]),
        fit(draw, "times of a ring, off by up to 4%", [("ring", n)], NOISE),
        fit(draw, "times of a ring, off by up to 4%", [("ring", 4)], NOISE),
        fit(draw, "times on a slow link, off by up to 4%", [("ring", 4)], NOISE, scale=250),
    ]


def fit(
    draw: Draw, label: str, kinds: list[tuple[str, int]], noise: float = 0, scale: float = 1
) -> Case:
    """Points of a link; with noise such that least squares of seconds is off."""
    while True:
        alpha, beta = draw_link(draw, scale)
        points = [
            (a, n, size, model()(alpha, beta, n, size, a) * (1 + draw.rng.uniform(-noise, noise)))
            for a, n in kinds
            for size in SIZES
        ]
        draw.rng.shuffle(points)
        case = Case(label, points, function="fit", known=(alpha, beta, not noise))
        if not noise or not same(by_seconds(points), (alpha, beta), case):
            return case


def by_seconds(points: list[Any]) -> tuple[float, float]:
    """Least squares of errors in seconds, as of polyfit."""
    return fitted(points, {"ring": ring, "tree": tree}, power=0)


def wrong(other_ring: Cost = ring, other_tree: Cost = tree) -> list[Any]:
    """Models with another cost of a ring, of a tree, or of both."""
    return [model(one, other) for one in (ring, other_ring) for other in (tree, other_tree)]


def multiples(latencies: float, share: float) -> list[Any]:
    """Models with multiples of the right costs."""
    return wrong(
        lambda n: (ring(n)[0] * latencies, ring(n)[1] * share),
        lambda n: (tree(n)[0] * latencies, tree(n)[1] * share),
    )


def as_bandwidth(*args: Any) -> Any:
    """beta in bytes per second."""
    if len(args) == 1:
        alpha, beta = model()(*args)
        return alpha, 1 / beta
    return model()(args[0], 1 / args[1], *args[2:])


def until(limit: Callable[..., float]) -> Callable[..., str]:
    """A tree below limit(alpha, beta, n) bytes."""
    return lambda alpha, beta, n, nbytes: "tree" if nbytes < limit(alpha, beta, n) else "ring"


LIMITS = [
    *(until(lambda a, b, n, size=2 ** (k / 4): size) for k in range(64, 113)),
    *(until(lambda a, b, n, k=k: k * a / b) for k in (0.25, 0.5, 1, 2, 4)),
    *(until(lambda a, b, n, k=k: k * (n - 1) * a / b) for k in (0.5, 1, 2)),
    *(until(lambda a, b, n, k=k: k * n * a / b) for k in (0.5, 1, 2)),
]
RING = "return 2 * (n - 1) * (alpha + nbytes / n * beta)"
TREE = "return 2 * levels * (alpha + nbytes * beta)"
LEVELS = "(n - 1).bit_length()"
SECONDS = "predict(1.0, 0.0, n, nbytes, algorithm) / seconds"
BYTES = "predict(0.0, 1.0, n, nbytes, algorithm) / seconds"

MISTAKES = [
    Mistake(
        "leaves the latency out",
        "Every message costs alpha besides its bytes. For small tensors that is nearly all of it.",
        formula=multiples(0, 1),
        function="predict",
        made_by=patch(RING, RING.replace("alpha", "0"), TREE, TREE.replace("alpha", "0")),
    ),
    Mistake(
        "counts one phase of two",
        "An all-reduce is a reduction and a distribution: n - 1 and n - 1 steps of a ring, and "
        "ceil(log2 n) steps up a tree and as many down.",
        hint=2,
        formula=multiples(0.5, 0.5),
        made_by=patch(RING, RING.replace("2 * ", "")),
    ),
    Mistake(
        "pays the latency once",
        "The messages of a collective come one after the other, and each costs alpha: as many "
        "alphas as there are steps.",
        formula=[
            *wrong(lambda n: (1, ring(n)[1]), lambda n: (1, tree(n)[1])),
            *wrong(lambda n: (2, ring(n)[1]), lambda n: (2, tree(n)[1])),
        ],
        made_by=patch(RING, "return alpha + 2 * (n - 1) / n * nbytes * beta"),
    ),
    Mistake(
        "takes the whole collective for one message",
        "alpha + D beta is one message from one rank to another. Count the steps of the "
        "all-reduce, and the bytes that a rank sends in each.",
        formula=wrong(lambda n: (1, 1), lambda n: (1, 1)),
        made_by=patch(SECONDS, "1 / seconds", BYTES, "nbytes / seconds"),
    ),
    Mistake(
        "takes bits for bytes",
        "The bytes cost 8 times too much, or too little. nbytes are bytes, and beta is seconds per "
        "byte. Only the speeds of networks are given in bits.",
        hint=3,
        formula=[*multiples(1, 8), *multiples(1, 1 / 8)],
        made_by=patch(RING, RING.replace("* beta", "* 8 * beta")),
    ),
    Mistake(
        "takes beta for a bandwidth",
        "Here beta is seconds per byte, one over the bandwidth: bytes are multiplied by it.",
        hint=3,
        formula=as_bandwidth,
        made_by=patch(
            RING,
            RING.replace("* beta", "/ beta"),
            TREE,
            TREE.replace("* beta", "/ beta"),
        ),
    ),
    Mistake(
        "each step of the ring carries the whole tensor",
        "A ring cuts the tensor into n chunks, and each step sends one of them: D/n bytes. So a "
        "rank sends less than 2 D, for any n.",
        hint=3,
        formula=wrong(lambda n: (ring(n)[0], ring(n)[0])),
        made_by=patch("nbytes / n * beta", "nbytes * beta"),
    ),
    Mistake(
        "cuts the tensor in the tree",
        "A tree sends the whole tensor in each step. Only the ring cuts it into n chunks.",
        hint=3,
        formula=wrong(ring, lambda n: (tree(n)[0], tree(n)[0] / n)),
        made_by=patch(TREE, TREE.replace("nbytes", "nbytes / n")),
    ),
    Mistake(
        "pays for the bytes of the tree once",
        "A rank sends the tensor on when it has all of it. So its bytes take their time again in "
        "each step: D beta is paid as often as alpha.",
        hint=2,
        formula=wrong(ring, lambda n: (tree(n)[0], 2)),
        made_by=patch(TREE, "return 2 * levels * alpha + 2 * nbytes * beta"),
    ),
    Mistake(
        "does not round log2 n up",
        "Steps are whole, and after floor(log2 n) steps of doubling some ranks have nothing yet. "
        "5 and 6 ranks take 3 steps, 9 ranks take 4: ceil(log2 n), or (n - 1).bit_length().",
        hint=3,
        formula=[
            each
            for rounded in (float, math.floor, round)
            for each in wrong(ring, lambda n, r=rounded: (2 * r(math.log2(n)),) * 2)
        ],
        made_by=patch(LEVELS, "n.bit_length() - 1"),
    ),
    Mistake(
        "the tree takes as many steps as the ring",
        "The ranks that have been reached double in each step: ceil(log2 n) steps up and as many "
        "down, each of the whole tensor.",
        hint=2,
        formula=[*wrong(ring, ring), *wrong(ring, lambda n: (2 * (n - 1),) * 2)],
        made_by=patch(LEVELS, "n - 1"),
    ),
    Mistake(
        "counts n steps instead of n - 1",
        "In the reduce-scatter a rank's chunk passes the n - 1 other ranks, and as many in the "
        "all-gather: 2 (n - 1) steps.",
        hint=2,
        formula=wrong(lambda n: (2 * n, 2)),
        made_by=patch(RING, RING.replace("(n - 1)", "n")),
    ),
    Mistake(
        "chooses the slower one",
        "The answer is the algorithm that takes less time.",
        function="choose",
        formula=lambda *asked: {"ring": "tree", "tree": "ring"}[right(*asked)],
        made_by=patch("ring <= tree", "ring > tree"),
    ),
    Mistake(
        "takes two points for all",
        "The smallest point gives alpha only where its bytes cost nothing, and the largest gives "
        "beta only where its latencies cost nothing. Fit both to all points.",
        function="fit",
        formula=lambda points: (
            (small := min(points, key=lambda p: p[2]))[3] / model()(1, 0, *small[1:3], small[0]),
            (large := max(points, key=lambda p: p[2]))[3] / model()(0, 1, *large[1:3], large[0]),
        ),
        made_by=patch(
            "    xx = xy",
            "    small, *_, large = sorted(points, key=lambda point: point[2])\n"
            "    alpha = small[3] / predict(1.0, 0.0, *small[1:3], small[0])\n"
            "    return alpha, large[3] / predict(0.0, 1.0, *large[1:3], large[0])\n    xx = xy",
        ),
    ),
    Mistake(
        "always chooses the same",
        "A tree has fewer steps and is faster where the latency decides. A ring sends fewer bytes "
        "per rank and is faster where the bandwidth decides.",
        function="choose",
        formula=[lambda *asked: "ring", lambda *asked: "tree"],
        made_by=patch('return "ring" if ring <= tree else "tree"', 'return "ring"'),
    ),
    Mistake(
        "changes to the ring at another size",
        "The size from which on a ring is faster depends on alpha, beta and n: a ring has more "
        "latencies, a tree more bytes. Compare the two predictions.",
        hint=2,
        function="choose",
        formula=LIMITS,
        made_by=patch("ring <= tree", "nbytes >= 2**20"),
    ),
    Mistake(
        "lets the largest size decide",
        "Least squares of seconds looks at the largest times only: a few percent of those are more "
        "than all of alpha, which may come out below 0. Divide each equation by its time: then "
        "errors of the same percentage count alike at every size.",
        function="fit",
        formula=[
            by_seconds,
            lambda points: (max(by_seconds(points)[0], 0.0), by_seconds(points)[1]),
            lambda points: (abs(by_seconds(points)[0]), by_seconds(points)[1]),
        ],
        made_by=patch(
            SECONDS,
            SECONDS.removesuffix(" / seconds"),
            BYTES,
            BYTES.removesuffix(" / seconds"),
            "x1 + x, y1 + y",
            "x1 + x * seconds, y1 + y * seconds",
        ),
    ),
]

GRADER = Questions(
    name="alpha_beta",
    functions=("fit", "predict", "choose"),
    cases=cases,
    right=right,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.calc", "labkit.measure"),
    shown="you count the messages and bytes of a ring and of a tree, choose the faster one, and "
    "fit alpha and beta to times with errors, on fast links and on slow ones",
)
