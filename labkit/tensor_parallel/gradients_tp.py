"""Gradients of parameters that several ranks hold and use for something else; the norm of all.

Two kinds of parameters: norms (and positions) under sequence parallelism, which see only this
rank's tokens, and copies of key-value heads, which serve only this rank's query heads. A rank's own
gradient is then a part of the truth, and the copies drift apart unless the parts are added up.

Without sequence parallelism a norm sees all tokens on every rank, and has the whole gradient
everywhere: adding those up would make it n times too large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from labkit import arguments, global_norm
from labkit.collectives.first_order import first_order_only
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.tensor_parallel.full_state import group_of, parameters_with_cuts


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


def clip_gradients(model: nn.Module, max_norm: float, group: Group | None = None) -> Tensor:
    """Scale all gradients so that their norm over all ranks is at most `max_norm`.

    model: what `parallelize` returned, or a module of this package's layers; group: None takes the
    model's own. Returns the norm before, (), in float64, the same on every rank. Every rank calls
    it, after backward. TypeError or ValueError for a norm that is not above 0.
    Wire: one number in an all-reduce.
    """
    group = group_of(model, group)
    held = {parameter: cut.num_holders(group) for _, parameter, cut in parameters_with_cuts(model)}
    gradients = [(p.grad, num_holders) for p, num_holders in held.items() if p.grad is not None]
    return global_norm.clip(gradients, max_norm, group)
