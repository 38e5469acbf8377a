"""Mistakes in overlap_backward, by the gradients that they leave."""

from collections.abc import Sequence

import torch

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.gradient_values import Gradients, Left, Theory
from labkit.grade.graders.overlap_inputs import Given
from labkit.grade.graders.overlap_order import events_on
from labkit.grade.outcome import Finding, Outcome

MIXED = "mixes gradients of different parameters"
WHY_MIXED = (
    "the ranks finish their gradients in different orders, and each begins its all-reduces in its "
    "own. They are matched by their order alone, so left's gradient on one rank is added to "
    "right's on another"
)
ONE_ORDER = (
    "Agree on one order, that of the parameters from the last to the first: a gradient that is "
    "there before its turn, waits for it"
)


def theories(evidence: CaseEvidence, given: Given) -> list[Theory]:
    """In the order in which they are tried."""
    own = [given.gradients(rank) for rank in range(evidence.world_size)]
    mean, n = given.mean(), evidence.world_size
    return [
        Theory(
            "sums instead of averaging",
            f"the gradients are the sum over the ranks, {n} times the mean. (A division while the "
            "all-reduce is under way is lost: divide before it begins, or after wait().)",
            lambda rank: {name: value * n for name, value in mean.items()},
        ),
        Theory(
            "divides by the number of ranks twice",
            f"the gradients are the mean, divided by {n} once more",
            lambda rank: {name: value / n for name, value in mean.items()},
        ),
        Theory(
            "the gradients stay as they were",
            "every rank has its own gradients still: without out=, what wait() returns is the "
            "result, and it has to become the gradient",
            lambda rank: own[rank],
        ),
        *_mixed(evidence, own),
    ]


def _mixed(evidence: CaseEvidence, own: Sequence[Gradients]) -> list[Theory]:
    """If the ranks' orders differ, and what each begins k-th has the same shape on all."""
    ranks = range(evidence.world_size)
    orders = [[name for _, name in events_on(evidence, rank).ready] for rank in ranks]
    shapes = {tuple(own[0][name].shape for name in order) for order in orders}
    if len(shapes) > 1 or len({tuple(order) for order in orders}) == 1:
        return []

    def on(me: int) -> Gradients:
        return {
            name: torch.stack([own[r][orders[r][k]] for r in ranks]).mean(0)
            for k, name in enumerate(orders[me])
        }

    return [Theory(MIXED, f"{WHY_MIXED}; the shapes fit, so nothing fails. {ONE_ORDER}", on)]


def frozen_ones(evidence: CaseEvidence, given: Given, left: Sequence[Left]) -> Finding | None:
    """Gradients where there should be none."""
    for rank, each in enumerate(left):
        for name in given.frozen:
            if each.gradients[name] is not None:
                return Finding(
                    Outcome.WRONG,
                    "gives a frozen parameter a gradient",
                    f"{name} is frozen, and has a gradient now. Leave out what has "
                    "requires_grad=False",
                    first_seen=f"{evidence.label}: rank {rank}",
                    hint=3,
                )
    return None
