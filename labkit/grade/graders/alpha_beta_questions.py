"""What is asked about links, drawn for each check: to fit points, predict times, and choose."""

import random
from dataclasses import dataclass, replace

from labkit.grade.answers import Question
from labkit.grade.graders.alpha_beta_costs import ALGORITHMS, RING, TREE, cost
from labkit.grade.graders.alpha_beta_points import Truth, draw_link, exact_points, noisy_points

# 5 and 9: there the logarithm is not to be rounded but to be rounded up.
_NUM_RANKS = (2, 4, 5, 6, 8, 9, 12, 64)
_FAR = 1 / 100  # a rule for the crossing that is off by less is right there
_MARGIN = 1.3  # nobody is asked to choose between times that are closer than this


@dataclass(frozen=True, slots=True)
class Asked:
    """A time, or a choice: of which link, ranks and size."""

    alpha: float
    beta: float
    n: int
    nbytes: int
    algorithm: str = ""
    """Of a prediction."""


Known = Truth | Asked


def draw(rng: random.Random) -> list[Question[Known]]:
    """All that is asked before anything is measured, the plainest first of each kind."""
    return [*_times(rng), *_choices(rng), *_fits(rng)]


def fit_question(truth: Truth, label: str) -> Question[Known]:
    """The points of a link."""
    return Question("fit", (list(truth.points),), label, truth)


def faster(asked: Asked) -> str:
    """The algorithm that takes less time."""
    return min(ALGORITHMS, key=lambda each: seconds(asked, each))


def seconds(asked: Asked, algorithm: str) -> float:
    """By the model."""
    return cost(algorithm, asked.n).seconds(asked.alpha, asked.beta, asked.nbytes)


def _times(rng: random.Random) -> list[Question[Known]]:
    questions: list[Question[Known]] = []
    for algorithm in ALGORITHMS:
        for n in _NUM_RANKS:
            alpha, beta = draw_link(rng)
            # As many seconds of latencies as of bytes, or nearly: to leave one out shows.
            latencies, share = cost(algorithm, n)
            # Not a multiple of n: a segment's bytes are D / n on average, whatever the remainder.
            nbytes = n * round(rng.uniform(0.5, 2) * latencies * alpha / (share * beta) / n) + 1
            asked = Asked(alpha, beta, n, nbytes, algorithm)
            arguments = (alpha, beta, n, nbytes, algorithm)
            questions.append(Question("predict", arguments, f"{algorithm}, {n} ranks", asked))
    return questions


def _choices(rng: random.Random) -> list[Question[Known]]:
    """Sizes on either side of where ring and tree are equal, near and far, for several links."""
    asked = []
    for n in (4, 6, 12, 64):
        for factor in (1.0, 100.0):  # slow networks have their crossing elsewhere
            alpha, beta = draw_link(rng)
            link = Asked(alpha * factor, beta, n, 0)
            equal = _bytes_where_equal(link)
            below = _just_clear(link, equal)
            asked += [
                Asked(link.alpha, beta, n, round(equal * each))
                for each in (below, 1 / below, _FAR, 1 / _FAR)
            ]
    alpha, beta = draw_link(rng)
    asked.append(Asked(alpha, beta, 2, round(10 * alpha / beta)))
    rng.shuffle(asked)
    assert all(_is_clear(each) for each in asked)
    return [
        Question("choose", (each.alpha, each.beta, each.n, each.nbytes), f"{each.n} ranks", each)
        for each in asked
    ]


def _just_clear(link: Asked, equal_bytes: float) -> float:
    """The part of `equal_bytes` at which the slower one takes little more than _MARGIN as long."""
    factor = 0.9
    while not all(
        _is_clear(replace(link, nbytes=round(equal_bytes * each))) for each in (factor, 1 / factor)
    ):
        factor *= 0.9
    return factor * 0.9


def _bytes_where_equal(link: Asked) -> float:
    """Below this a tree is faster, and above it a ring."""
    ring, tree = cost(RING, link.n), cost(TREE, link.n)
    return (ring.latencies - tree.latencies) * link.alpha / (tree.share - ring.share) / link.beta


def _is_clear(asked: Asked) -> bool:
    times = [seconds(asked, algorithm) for algorithm in ALGORITHMS]
    return max(times) > _MARGIN * min(times)


def _fits(rng: random.Random) -> list[Question[Known]]:
    n = rng.choice((5, 9))  # where no way to round the logarithm is right but up
    mixed = [(RING, 4), (TREE, 4), (RING, 16)]
    return [
        fit_question(exact_points([(RING, n)], rng), f"exact times of a ring, {n} ranks"),
        fit_question(exact_points([(TREE, n)], rng), f"exact times of a tree, {n} ranks"),
        fit_question(exact_points(mixed, rng), "exact times of rings and trees together"),
        fit_question(noisy_points(n, rng), f"times of a ring, {n} ranks, with noise of 4%"),
        fit_question(noisy_points(4, rng), "times of a ring, 4 ranks, with noise of 4%"),
    ]
