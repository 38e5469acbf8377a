"""What a rank runs of top_k_capacity: the call, and backward from the weights.

On the rank, around the code under test; nothing here judges.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.grade.exact import is_same
from labkit.grade.graders.capacity_rules import Given
from labkit.grade.graders.routing_watch import OwnRouting
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup

NUM_RETURNED = 4


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    has_graph: bool
    """Whether backward gets from the weights to the logits."""
    has_changed: bool
    """Whether logits or bias are not what they were."""
    experts: Tensor
    slots: Tensor
    weights: Tensor
    tokens: Tensor
    gradient: Tensor
    """Of the logits; zeros without a graph."""


class Told(list[Tensor]):
    """What was seen; told apart by its type from whatever the code under test returns."""


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> object:
    """Run on a rank: the call, and what was seen; where no four tensors come back: that."""
    given = Given(*arguments)
    leaf, bias = given.logits.clone().requires_grad_(), given.bias.clone()
    logits = leaf.clone()  # as a router's linear layer leaves it: no leaf, which may be written to
    with group.gate.watching(OwnRouting(group.gate)):
        returned = function(logits, bias, given.k, given.factor, given.renormalise)
    is_four = isinstance(returned, tuple | list) and len(returned) == NUM_RETURNED
    if not is_four or not all(map(is_plain_tensor, returned)):
        return returned
    has_changed = not (is_same(logits, given.logits) and is_same(bias, given.bias))
    weights, gradient = returned[2], None
    if weights.requires_grad and weights.shape == given.output_gradient.shape:
        into = given.output_gradient.to(weights.dtype)
        (gradient,) = torch.autograd.grad(weights, leaf, into, allow_unused=True)
    numbers = torch.tensor([gradient is not None, has_changed])
    found = torch.zeros_like(leaf) if gradient is None else gradient
    return Told([numbers, *(each.detach() for each in returned), found.detach()])


def seen_in(outputs: Sequence[Tensor]) -> Seen:
    """What `watched` has told, in the driver."""
    numbers, experts, slots, weights, tokens, gradient = outputs
    has_graph, has_changed = numbers.tolist()
    return Seen(has_graph, has_changed, experts, slots, weights, tokens, gradient)
