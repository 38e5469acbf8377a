"""Mistakes in zero2_gradients, by the segments that they leave."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.grade.graders.zero2_inputs import Given

Weights = Callable[[int, int, int], float]
"""(rank that has the segment, rank, microbatch) -> the weight of that microbatch's gradient."""


@dataclass(frozen=True)
class Mistake:
    """A name for it, and the segments that a rank then has, by bucket."""

    name: str
    explanation: str
    segments: Callable[[int], list[Tensor]]


def right(given: Given) -> list[list[Tensor]]:
    """By rank and bucket."""
    ranks = range(len(given.microbatches))
    parts = weighted(given, lambda me, rank, i: 1 / (len(ranks) * given.num_microbatches))
    return [parts(rank) for rank in ranks]


def weighted(given: Given, weights: Weights) -> Callable[[int], list[Tensor]]:
    """Segments of weighted sums of all gradients, by the rank that has them."""
    of, n = given.gradients(), len(given.microbatches)

    def on(me: int) -> list[Tensor]:
        sums = [
            sum(
                (weights(me, rank, i) * of[rank][i][bucket] for rank in range(n) for i in _all(of)),
                torch.zeros(()),
            )
            for bucket in range(len(given.buckets))
        ]
        return [each.tensor_split(n)[me] for each in sums]

    return on


def _all(of: list[list[list[Tensor]]]) -> range:
    return range(len(of[0]))


def mistakes(given: Given) -> list[Mistake]:
    """In the order in which they are tried."""
    rows = (*_divisions(given), *_of_microbatches(given))
    return [
        *(Mistake(name, why, weighted(given, weights)) for name, why, weights in rows),
        *_of_places(given),
    ]


def _divisions(given: Given) -> list[tuple[str, str, Weights]]:
    n, k = len(given.microbatches), given.num_microbatches
    return [
        (
            "sums over the ranks instead of averaging",
            f"the segments are {n} times the mean: they are added up over the ranks, and not "
            "divided by their number",
            lambda me, rank, i: 1 / k,
        ),
        (
            "divides by the number of ranks twice",
            f"the segments are the mean, divided by {n} once more, the number of ranks",
            lambda me, rank, i: 1 / (n * n * k),
        ),
        (
            "forgets to divide by the number of microbatches",
            f"the segments are {k} times the mean, and {k} is the number of microbatches: what is "
            "added up are gradients of means, and the mean of the step divides by all of them",
            lambda me, rank, i: 1 / n,
        ),
        (
            "divides by the number of microbatches twice",
            f"the segments are the mean, divided by {k} once more, the number of microbatches",
            lambda me, rank, i: 1 / (n * k * k),
        ),
        (
            "does not average over the ranks",
            "each rank has the segment of its own gradients: nothing of another rank's is in it",
            lambda me, rank, i: (rank == me) / k,
        ),
    ]


def _of_microbatches(given: Given) -> list[tuple[str, str, Weights]]:
    n, k = len(given.microbatches), given.num_microbatches
    last = (
        "overwrites the segments of earlier microbatches",
        "only the last microbatch is in the segments. What backward adds to is gone, since the "
        "gradients are freed: the segments are what there is to add to",
    )
    again = (
        "reduces earlier microbatches again",
        f"the first of {k} microbatches is in the segments {k} times, and the last once: .grad was "
        "not freed after it was reduced, so backward added to it, and the sum was reduced. Set it "
        "to None when it is on its way",
    )
    means = (
        "averages as it goes",
        "each microbatch was averaged with the segment before it, so that the last counts a half "
        "and the first hardly anything",
    )

    def halves(me: int, rank: int, i: int) -> float:
        return 0.5 ** (k - max(i, 1)) / n

    if k == 1:
        return []
    return [
        (*last, lambda me, rank, i: (i == k - 1) / (n * k)),
        (*last, lambda me, rank, i: (i == k - 1) / n),
        (*again, lambda me, rank, i: (k - i) / (n * k)),
        (*again, lambda me, rank, i: (k - i) / n),
        *([(*means, halves)] if k > 2 else []),
    ]


def _of_places(given: Given) -> list[Mistake]:
    n, of_ranks = len(given.microbatches), right(given)
    found = [
        Mistake(
            "returns another rank's segments",
            f"rank r has the segments of rank (r + {shift}) % {n}: reduce_scatter leaves segment r "
            "on rank r, and that is what the optimizer's states there belong to",
            lambda rank, shift=shift: of_ranks[(rank + shift) % n],  # type: ignore[misc]
        )
        for shift in range(1, n)
    ]
    turned = Mistake(
        "returns the buckets in another order",
        "the segments are right, and come in the reverse order of the buckets",
        lambda rank: of_ranks[rank][::-1],
    )
    return [*found, turned]
