"""Mistakes in a step of ZeRO-1, by the parameters that they leave after the first step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from labkit.grade.graders.zero1_inputs import Adam, Given


@dataclass(frozen=True)
class Mistake:
    """A name for it, and the parameters that a rank then has."""

    name: str
    explanation: str
    parameters: Callable[[int], Tensor]


def stepped(weights: Tensor, gradients: Tensor) -> Tensor:
    """A first step of Adam; it treats every number by itself."""
    after = weights.clone()
    Adam().step(after, gradients)
    return after


def mistakes(given: Given) -> list[Mistake]:
    """In the order in which they are tried."""
    return [*_of_gradients(given), *_of_segments(given), *_of_order(given)]


def _of_gradients(given: Given) -> list[Mistake]:
    weights, of_ranks = given.parameters, given.at(0)
    n, mean = len(of_ranks), of_ranks.mean(0)
    alone = [stepped(weights, each) for each in of_ranks]
    return [
        Mistake(
            "sums instead of averaging",
            f"the step was made with the sum over the ranks, {n} times the mean. Adam hides most "
            "of it, since it divides by the gradient's size: the loss looks right, and clipping, "
            "eps and any other optimizer are wrong",
            lambda rank: stepped(weights, mean * n),
        ),
        Mistake(
            "divides by the number of ranks twice",
            f"the step was made with the mean, divided by {n} once more",
            lambda rank: stepped(weights, mean / n),
        ),
        Mistake(
            "each rank steps with its own gradients",
            "no gradient of another rank is in the parameters: they are different on every rank",
            lambda rank: alone[rank],
        ),
        Mistake(
            "a segment steps with one rank's gradients only",
            "segment r has been updated with rank r's own gradients of it, and everybody has got "
            "that: nothing was averaged. What reduce_scatter returns is the gradient to use",
            lambda rank: _joined(alone),
        ),
        Mistake(
            "averages parameters instead of gradients",
            "each rank has made its step with its own gradients, and then the parameters were "
            "averaged. A step of Adam is not linear in the gradient, so that is another one",
            lambda rank: torch.stack(alone).mean(0),
        ),
    ]


def _of_segments(given: Given) -> list[Mistake]:
    weights, n = given.parameters, len(given.gradients)
    right, numel = given.right()[0], weights.numel()
    even = numel // n * n
    return [
        Mistake(
            "the parameters stay as they were",
            "no parameter has changed: they are to be updated in their own memory, with copy_ for "
            "example. A name that is bound to another tensor changes nothing for the caller, and "
            "neither does a step on a copy",
            lambda rank: weights,
        ),
        Mistake(
            "the updated segments are not gathered",
            "each rank has updated its own segment, and has the others as they were: the models "
            "are different from now on",
            lambda rank: _joined([right if r == rank else weights for r in range(n)]),
        ),
        Mistake(
            "forgets the remainder",
            f"{numel} numbers are {n} segments of {numel // n}, and {numel - even} are left over: "
            "just those are never updated. Pad until n divides the size",
            lambda rank: torch.cat([right[:even], weights[even:]]),
        ),
    ]


def _of_order(given: Given) -> list[Mistake]:
    n = len(given.gradients)
    weights, mean, right = (
        list(_segments(x, n)) for x in (given.parameters, given.at(0).mean(0), given.right()[0])
    )
    numel = given.parameters.numel()
    found = []
    for shift in range(1, n):
        others = [(rank + shift) % n for rank in range(n)]
        pairs = [stepped(weights[other], mean[rank]) for rank, other in enumerate(others)]
        placed = dict(zip(others, pairs, strict=True))
        explanation = (
            f"rank r has the gradients of segment r, and has made its step with the weights of "
            f"segment (r + {shift}) % {n}: reduce_scatter leaves segment r on rank r"
        )
        name = "steps a segment with another one's gradients"
        for order in (pairs, [placed[rank] for rank in range(n)]):
            found.append(Mistake(name, explanation, _constant(torch.cat(order)[:numel])))
        moved = torch.cat([right[other] for other in others])[:numel]
        found.append(
            Mistake(
                "puts the segments in another order",
                f"all numbers are right, and lie in the wrong places: where segment r belongs is "
                f"segment (r + {shift}) % {n}. all_gather joins in the order of the ranks",
                _constant(moved),
            )
        )
    return found


def _constant(value: Tensor) -> Callable[[int], Tensor]:
    return lambda rank: value


def _segments(x: Tensor, n: int) -> tuple[Tensor, ...]:
    return pad(x, (0, -x.numel() % n)).tensor_split(n)


def _joined(of_ranks: list[Tensor]) -> Tensor:
    """Segment r of the r-th, for each r."""
    n = len(of_ranks)
    return torch.cat([_segments(x, n)[rank] for rank, x in enumerate(of_ranks)])[
        : of_ranks[0].numel()
    ]
