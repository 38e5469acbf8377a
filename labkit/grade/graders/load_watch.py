"""What a rank runs of load_balancing_loss: the call, and backward from each of the two losses.

On the rank, around the code under test; nothing here judges.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.grade.exact import is_same
from labkit.grade.graders.load_theories import Given
from labkit.grade.graders.routing_watch import OwnRouting
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    has_changed: bool
    """Whether an argument is not what it was."""
    has_graph: Sequence[bool]
    """Of each loss: whether backward gets to the logits."""
    losses: Sequence[Tensor]
    gradients: Sequence[Tensor]
    """(T, E) of each loss; zeros without a graph."""


class Told(list[Tensor]):
    """What was seen; told apart by its type from whatever the code under test returns."""


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> object:
    """Run on a rank: the call, and what was seen; where no two tensors come back: that."""
    given = Given(*arguments)
    leaf, experts, kept = given.logits.clone().requires_grad_(), *map(torch.clone, given[1:])
    logits = leaf.clone()  # as a router's linear layer leaves it: no leaf, which may be written to
    with group.gate.watching(OwnRouting(group.gate)):
        returned = function(logits, experts, kept)
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    if not is_pair or not all(map(is_plain_tensor, returned)):
        return returned
    pairs = zip((logits, experts, kept), given, strict=True)
    has_changed = not all(is_same(now, before) for now, before in pairs)
    gradients = [_gradient(loss, leaf) for loss in returned]
    numbers = torch.tensor([has_changed, *(each is not None for each in gradients)])
    found = [torch.zeros_like(leaf) if each is None else each for each in gradients]
    return Told([numbers, *(each.detach() for each in returned), *found])


def _gradient(loss: Tensor, leaf: Tensor) -> Tensor | None:
    """Of the logits; None where backward does not get there."""
    if not loss.requires_grad or loss.shape != ():
        return None
    (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True)
    return gradient


def seen_in(outputs: Sequence[Tensor]) -> Seen:
    """What `watched` has told, in the driver."""
    numbers, *tensors = outputs
    has_changed, *has_graph = map(bool, numbers.tolist())
    return Seen(has_changed, has_graph, tensors[:2], tensors[2:])
