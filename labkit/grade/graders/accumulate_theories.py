"""Mistakes in accumulate_without_sync, by the gradients that they leave."""

from collections.abc import Callable, Sequence

import torch

from labkit.grade.graders.gradient_values import Gradients, Theory

Weights = Callable[[int, int, int], float]
"""(rank that has the result, rank, microbatch) -> the weight of that microbatch's gradient."""
_Row = tuple[str, str, Weights]


def combined(of: Sequence[Sequence[Gradients]], weights: Weights) -> Callable[[int], Gradients]:
    """Weighted sums of the gradients of all microbatches, by the rank that has the result."""

    def on(me: int) -> Gradients:
        return {
            name: torch.stack(
                [
                    weights(me, rank, i) * gradients[name]
                    for rank, its in enumerate(of)
                    for i, gradients in enumerate(its)
                ]
            ).sum(0)
            for name in of[0][0]
        }

    return on


def mean(of: Sequence[Sequence[Gradients]]) -> Gradients:
    """What is right, on every rank."""
    return combined(of, lambda me, rank, i: 1 / (len(of) * len(of[0])))(0)


def theories(of: Sequence[Sequence[Gradients]]) -> list[Theory]:
    """In the order in which they are tried."""
    n, k = len(of), len(of[0])
    return [
        Theory(name, explanation, combined(of, weights))
        for name, explanation, weights in (*_divisions(n, k), *_zeroed(n, k), *_not_averaged(n, k))
    ]


def _divisions(n: int, k: int) -> list[_Row]:
    return [
        (
            "forgets to divide by the number of microbatches",
            f"the gradients are {k} times the mean, and {k} is the number of microbatches: "
            "backward adds to the gradient that is there. Four microbatches would train with "
            "four times the learning rate",
            lambda me, rank, i: 1 / n,
        ),
        (
            "divides by the number of microbatches twice",
            f"the gradients are the mean, divided by {k} once more, the number of microbatches. "
            "Divide each loss, or the sum of gradients, but not both",
            lambda me, rank, i: 1 / (n * k * k),
        ),
        (
            "sums over the ranks instead of averaging",
            f"the gradients are {n} times the mean: they are added up over the ranks, and not "
            "divided by their number",
            lambda me, rank, i: 1 / k,
        ),
        (
            "divides by the number of ranks twice",
            f"the gradients are the mean, divided by {n} once more, the number of ranks",
            lambda me, rank, i: 1 / (n * n * k),
        ),
        (
            "adds up everything and divides by nothing",
            "the gradients are the sum over the microbatches and the ranks",
            lambda me, rank, i: 1,
        ),
    ]


def _not_averaged(n: int, k: int) -> list[_Row]:
    last = k - 1
    return [
        (
            "does not average over the ranks",
            "each rank has the mean over its own microbatches. From the first step on, the ranks "
            "have different models",
            lambda me, rank, i: (rank == me) / k,
        ),
        (
            "the last microbatch is not averaged",
            "of the last microbatch, each rank has its own gradient only: it is added after the "
            "all-reduce. Communicate when the last backward is through",
            lambda me, rank, i: 1 / (n * k) if i < last else (rank == me) / k,
        ),
        (
            "only the last microbatch is averaged",
            "of the microbatches before the last, each rank has its own gradients only: what is "
            "reduced is to be what has accumulated, and not the last gradient alone",
            lambda me, rank, i: 1 / (n * k) if i == last else (rank == me) / k,
        ),
    ]


def _zeroed(n: int, k: int) -> list[_Row]:
    last = k - 1
    name, explanation = (
        "zeroes gradients between microbatches",
        "only the last microbatch has come to anything: the gradients were set to zero, or "
        "replaced, before each backward. backward adds to them, and that is the accumulation; they "
        "are cleared once per optimizer step",
    )
    return [
        (name, explanation, lambda me, rank, i: (i == last) / (n * k)),
        (name, explanation, lambda me, rank, i: (i == last) / n),
    ]
