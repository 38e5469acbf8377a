"""Parameters that several ranks hold, and that each rank uses for something else.

Two kinds: norms (and positions) under sequence parallelism, which see only this rank's tokens, and
copies of key-value heads, which serve only this rank's query heads. A rank's own gradient is then
a part of the truth, and the copies drift apart unless the parts are added up.

Without sequence parallelism a norm sees all tokens on every rank, and has the whole gradient
everywhere: adding those up would make it n times too large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit import arguments
from labkit.collectives.first_order import first_order_only
from labkit.comm import Group
from labkit.comm.group import chosen


def summed_over(group: Group | None, *parameters: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, whose gradients are added up over the ranks of `group` in backward.

    Hand all that a model has to one call before they are used: autograd calls its backward once,
    when the last of their gradients is there, and one all-reduce takes them all. Nothing has to be
    called afterwards, and several backward passes add up as usual. The price: m microbatches send m
    times, where a call before the optimizer's step, as in Megatron-LM, would send once.
    `group`: None for torch.distributed's default one. TypeError for what is no tensor.
    Wire: backward one all-reduce of all their numbers, those without a gradient as zeros.
    """
    group = chosen(group)
    for each in parameters:
        arguments.instance("parameters", each, Tensor, "give tensors, one by one: *parameters")
    return _SummedOver.apply(group, *parameters)


class _SummedOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        flat = torch.cat([grad.flatten() for grad in grads])
        ctx.group.all_reduce(flat, out=flat)
        parts = flat.split([grad.numel() for grad in grads])
        return None, *(part.view(grad.shape) for part, grad in zip(parts, grads, strict=True))
