"""The settings and states of each class of torch.optim, by name.

torch has no list of them. So an optimizer of each class is made with its defaults, and makes a step
on one number with gradient 0. States are those that parameters of 1 and of 2 dims have in common.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

KERNEL_SETTINGS = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}
"""Settings of the implementation only, without effect on results: each program keeps its own."""


class StateNames(NamedTuple):
    """The names of a class's settings, and of its states after a step."""

    settings: frozenset[str]
    states: frozenset[str]


@cache
def state_names(kind: type) -> StateNames | None:
    """Return settings and states of an optimizer class; None if its defaults cannot make a step."""
    if not issubclass(kind, torch.optim.Optimizer):
        return None
    found = [each for dims in (2, 1) if (each := _after_a_step(kind, dims))]
    if not found:
        return None
    states = frozenset.intersection(*(each.states for each in found))  # Adafactor's differ by dims
    return StateNames(found[0].settings, states)


def _after_a_step(kind: type, dims: int) -> StateNames | None:
    parameter = torch.zeros([1] * dims, requires_grad=True)
    parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer = kind([parameter])
        optimizer.step()
    except (TypeError, ValueError, RuntimeError):  # a closure, sparse gradients, other dims
        return None
    (group,) = optimizer.param_groups
    settings = group.keys() - KERNEL_SETTINGS - {"params"}
    return StateNames(frozenset(settings), frozenset(optimizer.state[parameter]))
