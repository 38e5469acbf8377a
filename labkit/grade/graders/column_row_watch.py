"""A tensor-parallel MLP forward and backward on a rank, as a caller would use it; nothing judges.

The caller's output is x + mlp(x): gradients reach x past the MLP as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.exact import is_same
from labkit.grade.graders.column_row_inputs import NAMES
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup

BACKWARD = "\x02backward"
"""A region around the backward pass."""


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    changed: str
    """The first argument with other values than before; empty: none."""
    switched: str
    """The first argument whose requires_grad is another than before; empty: none."""
    y: Tensor
    gradients: list[Tensor | None]
    """In the order of NAMES; of x what came by way of the MLP and past it."""


class Told(list[Tensor]):
    """What was seen; told apart by its type from whatever the code under test returns."""


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> object:
    """Run on a rank: forward, then backward of a loss of x + y. Where y is no y: that."""
    *given, output_gradient = arguments
    leaves = [each.clone().requires_grad_() for each in given]
    # As the layer before returns it: no leaf.
    inputs = [leaves[0] * 1, *leaves[1:]]
    y = function(*inputs, group)
    if not is_plain_tensor(y) or y.shape != given[0].shape or y.dtype != given[0].dtype:
        return y
    values = y.detach().clone()
    changed = [not is_same(now, before) for now, before in zip(inputs, given, strict=True)]
    switched = [not each.requires_grad for each in inputs]
    total = inputs[0] + y
    if total.requires_grad:
        with group.region(BACKWARD):
            (total * output_gradient).sum().backward()
    changed = [
        before or not is_same(leaf, its)
        for before, leaf, its in zip(changed, leaves, given, strict=True)
    ]
    numbers = torch.tensor([_first(changed), _first(switched)])
    # None: a rank without features may have left them out of its graph.
    gradients = [torch.empty(0) if leaf.grad is None else leaf.grad for leaf in leaves]
    is_there = torch.tensor([leaf.grad is not None for leaf in leaves])
    return Told([numbers, values, is_there, *gradients])


def _first(flags: Sequence[bool]) -> int:
    return flags.index(True) if any(flags) else -1


def seen_on(evidence: CaseEvidence) -> list[Seen]:
    """By rank, what `watched` has told, in the driver."""
    seen = []
    for record in evidence.completed:
        numbers, y, is_there, *gradients = record.outputs
        its = [g if there else None for g, there in zip(gradients, is_there.tolist(), strict=True)]
        changed, switched = (NAMES[i] if i >= 0 else "" for i in numbers.tolist())
        seen.append(Seen(changed, switched, y, its))
    return seen


def passes(evidence: CaseEvidence, rank: int) -> tuple[list[Operation], list[Operation]]:
    """The rank's operations of forward, and of backward."""
    begins = [each.start_s for each in evidence.regions[rank] if each.name == BACKWARD]
    begin_s = begins[0] if begins else float("inf")
    operations = evidence.operations[rank]
    return (
        [each for each in operations if each.posted_s < begin_s],
        [each for each in operations if each.posted_s >= begin_s],
    )
