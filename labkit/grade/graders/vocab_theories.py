"""Mistakes in vocab_cross_entropy, by the losses and the gradients that come of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.grade.graders.vocab_inputs import Given


@dataclass(frozen=True)
class Mistake:
    """A name for it, and by rank what then comes back; None: that says nothing about it."""

    name: str
    explanation: str
    losses: Sequence[Tensor] | None = None
    gradients: Sequence[Tensor] | None = None


def mistakes(given: Given) -> list[Mistake]:
    """In the order in which they are tried. They need a token in every share."""
    if not all(share.shape[1] for share in given.shares):
        return []
    return [*_of_softmax(given), *_of_targets(given), *_of_loss(given), *_of_gradient(given)]


def _ranks(given: Given) -> range:
    return range(len(given.shares))


def _of_softmax(given: Given) -> list[Mistake]:
    n, x_NV, N = len(given.shares), given.logits_NV, len(given.targets_N)
    shares = [given.on(rank, x_NV) for rank in _ranks(given)]
    hits = [given.on(rank, given.hits_NV) for rank in _ranks(given)]
    own = [(share - share.amax(1, keepdim=True)).exp() for share in shares]
    total = torch.stack([each.sum(1, keepdim=True) for each in own]).sum(0)
    p_NV = x_NV.softmax(1)

    def less_hits(softmax: Sequence[Tensor]) -> list[Tensor]:
        return [(p - hit) / N for p, hit in zip(softmax, hits, strict=True)]

    return [
        Mistake(
            "subtracts the maximum of its own share",
            "every rank took off the maximum of its own logits, and the sums of exp were added up: "
            "they are multiples of different numbers, exp(-max) of each share. Reduce the maximum "
            'with op="max" before anything is subtracted, so that it is the same everywhere',
            gradients=less_hits([each / total for each in own]),
        ),
        Mistake(
            "normalises over its own share",
            "each rank's exp was divided by the sum over its own share: there are "
            f"{n} softmaxes, each of which adds up to 1. The sums have to be reduced",
            gradients=less_hits([share.softmax(1) for share in shares]),
        ),
        Mistake(
            "averages the sums of exp",
            f"the denominator is 1/{n} of what it should be: what the shares have is added up, "
            "and not averaged",
            gradients=less_hits([given.on(rank, n * p_NV) for rank in _ranks(given)]),
        ),
    ]


def _of_targets(given: Given) -> list[Mistake]:
    n, x_NV = len(given.shares), given.logits_NV
    targets_N = given.targets_N
    high_N, lse_N = x_NV.amax(1), x_NV.logsumexp(1)
    target_N = x_NV.gather(1, targets_N[:, None])[:, 0]
    owns = [given.on(rank, given.hits_NV).sum(1) for rank in _ranks(given)]
    found = []
    # The maximum has been taken off both, or off none.
    for off_N in (high_N, torch.zeros_like(high_N)):
        t_N, log_N = target_N - off_N, lse_N - off_N
        found += [
            Mistake(
                "does not reduce the target's logit",
                "a rank that does not have the target in its share used 0 for its logit. One rank "
                "knows it; the others get it by a sum to which they contribute 0",
                losses=[(log_N - owns[rank] * t_N).mean() for rank in _ranks(given)],
            ),
            Mistake(
                "averages the target's logit",
                f"one rank has it and the others have 0: their mean is 1/{n} of it. Add up",
                losses=[(log_N - t_N / n).mean()] * n,
            ),
        ]
        for columns in _columns(given):
            parts = [
                (given.on(rank, x_NV) - off_N[:, None]).gather(1, columns[rank][:, None])[:, 0]
                for rank in _ranks(given)
            ]
            found.append(
                Mistake(
                    "adds a logit of every share",
                    "each rank has looked up some logit for each position, also where the target "
                    "is not in its share, and all of them were added up. What a rank does not "
                    "have, is 0 in that sum",
                    losses=[(log_N - torch.stack(parts).sum(0)).mean()] * n,
                )
            )
    return found


def _columns(given: Given) -> list[list[Tensor]]:
    """By way and rank: the column that a position without a target there is given."""
    ways: list[Callable[[Tensor, int], Tensor]] = [
        lambda column_N, size: column_N.clamp(0, size - 1),
        lambda column_N, size: torch.where((column_N >= 0) & (column_N < size), column_N, 0),
        lambda column_N, size: column_N % size,
    ]
    sizes = [share.shape[1] for share in given.shares]
    local = [given.targets_N - first for first in given.firsts]
    return [[way(c_N, size) for c_N, size in zip(local, sizes, strict=True)] for way in ways]


def _of_loss(given: Given) -> list[Mistake]:
    n, N = len(given.shares), len(given.targets_N)
    loss, _ = given.right()
    mean_high = given.logits_NV.amax(1).mean()
    not_both = (
        "takes the maximum off one of two",
        "log of the sum of exp(x - max) is smaller than that of exp(x) by max, and so is the "
        "target's logit less max: use both as they are, or add max to both again",
    )
    rows = [
        (
            "divides the loss by the number of ranks",
            f"the loss is 1/{n} of what it should be: once the sums are reduced, every rank "
            "has the whole of it, and there is nothing left to average",
            loss / n,
        ),
        (
            "adds up the ranks' losses",
            f"the loss is {n} times what it should be: each rank had the whole of it already",
            loss * n,
        ),
        (
            "returns the sum over the positions",
            f"the loss is {N} times what it should be, and {N} is the number of positions",
            loss * N,
        ),
        (*not_both, loss - mean_high),
        (*not_both, loss + mean_high),
        ("has the loss with the other sign", "it is -log softmax, a number above 0", -loss),
    ]
    return [Mistake(name, why, losses=[value] * n) for name, why, value in rows]


def _of_gradient(given: Given) -> list[Mistake]:
    n, N = len(given.shares), len(given.targets_N)
    _, right = given.right()
    p_NV = given.logits_NV.softmax(1)
    rows: list[tuple[str, str, Callable[[int], Tensor]]] = [
        (
            "forgets that the loss is a mean",
            f"the gradient is {N} times what it should be, and {N} is the number of positions: it "
            "is that of the sum",
            lambda rank: right[rank] * N,
        ),
        (
            "divides the gradient by the number of ranks",
            f"the gradient is 1/{n} of what it should be. It is that of one loss, which all "
            "ranks have; nothing is averaged",
            lambda rank: right[rank] / n,
        ),
        (
            "does not subtract one at the target",
            "the gradient is softmax / N in every column: that is what pushes all logits down. At "
            "the target it is (softmax - 1) / N",
            lambda rank: given.on(rank, p_NV) / N,
        ),
        (
            "has the gradient with the other sign",
            "it points downhill: the gradient is (softmax - 1) / N at the target, below 0",
            lambda rank: -right[rank],
        ),
    ]
    named = [
        Mistake(name, why, gradients=[of(rank) for rank in _ranks(given)]) for name, why, of in rows
    ]
    return [*_one_less_everywhere(given, p_NV), *named]


def _one_less_everywhere(given: Given, p_NV: Tensor) -> list[Mistake]:
    N = len(given.targets_N)
    one_less = -torch.ones(N, 1, dtype=torch.float64)
    return [
        Mistake(
            "subtracts one on every rank",
            "each rank has subtracted 1 in some column of each position, also where the target is "
            "in another share. The softmax of a position adds up to 1 over the whole vocabulary, "
            "and its gradient to 0: only the target's own column is 1 less",
            gradients=[
                given.on(rank, p_NV).scatter_add(1, columns[rank][:, None], one_less) / N
                for rank in _ranks(given)
            ],
        )
        for columns in _columns(given)
    ]
