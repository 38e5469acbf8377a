"""One step of training on all ranks' examples, right and in the ways in which it goes wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from labkit.grade.evidence import Case

Tensor = torch.Tensor
Parts = tuple[Tensor, Tensor, Tensor]
"""Gradient of scale, gradient of shift, loss."""
_FULL_BATCH = 4


@dataclass(frozen=True)
class Sums:
    """Gradients and loss, summed over one rank's examples, and how many those are."""

    parts: Parts
    count: int

    @property
    def mean(self) -> "Sums":
        """The same, divided by the number of examples; zeros where there are none."""
        return Sums(_total([self], max(self.count, 1)), self.count)


@dataclass(frozen=True)
class Theory:
    """A mistake, and what a rank would get by it."""

    name: str
    explanation: str
    results: Callable[[Sequence[Sums], int], Parts]
    """From all ranks' sums and this rank's number."""


def sums_of(case: Case) -> list[Sums]:
    """By rank."""
    sums = []
    for x, y, scale, shift in case.arguments:
        error = x * scale + shift - y
        parts = (2 * error * x).sum(0), (2 * error).sum(0), (error**2).sum()
        sums.append(Sums(parts, len(x)))
    return sums


def mean_of_all(sums: Sequence[Sums], rank: int) -> Parts:
    """What is right: every example weighs the same, on every rank."""
    return _total(sums, sum(each.count for each in sums))


def _mean_of_means_with_examples(sums: Sequence[Sums]) -> Parts:
    means = [each.mean for each in sums if each.count]
    return _total(means, len(means))


def _total(sums: Sequence[Sums], divisor: float) -> Parts:
    grad_scale, grad_shift, loss = (
        torch.stack(parts).sum(0) / divisor for parts in zip(*(each.parts for each in sums))
    )
    return grad_scale, grad_shift, loss


_WEIGH_EXAMPLES = (
    "A rank with one example then weighs as much as a rank with eight. Reduce sums, and the number "
    "of examples with them, and divide once, at the end"
)
THEORIES = (
    Theory(
        "an average of averages",
        "it is the mean over the ranks of each rank's own mean. " + _WEIGH_EXAMPLES,
        lambda sums, rank: _total([each.mean for each in sums], len(sums)),
    ),
    Theory(
        "an average of averages",
        "it is the mean of the means of those ranks that have examples. " + _WEIGH_EXAMPLES,
        lambda sums, rank: _mean_of_means_with_examples(sums),
    ),
    Theory(
        "divides by the wrong number",
        "it is the sum over all examples divided by the number of ranks; the loss is a mean over "
        "examples, and so are its gradients",
        lambda sums, rank: _total(sums, len(sums)),
    ),
    Theory(
        "divides by the wrong number",
        "it is the sum over all examples divided by the number that this rank has: each rank gets "
        "another result. Reduce the number of examples, too",
        lambda sums, rank: _total(sums, max(sums[rank].count, 1)),
    ),
    Theory(
        "divides by the wrong number",
        "it is the sum over all examples divided by size times a full batch, though some batches "
        "are short",
        lambda sums, rank: _total(sums, _FULL_BATCH * len(sums)),
    ),
    Theory(
        "never divides",
        "it is the sum over all examples, not the mean over them",
        lambda sums, rank: _total(sums, 1),
    ),
    Theory(
        "stays on its own rank",
        "it is what this rank's own examples give: the ranks' models drift apart from here on. "
        "Every rank needs what all of them have",
        lambda sums, rank: _total([sums[rank]], max(sums[rank].count, 1)),
    ),
    Theory(
        "stays on its own rank",
        "it is the sum over this rank's own examples, without those of the others",
        lambda sums, rank: _total([sums[rank]], 1),
    ),
)
