"""Gather whole models from shards, and shard them again; sum gradients of replicated parameters.

Gathering works on any module built of this package's layers, whose `shardings` say how each of
their parameters is cut. All other parameters count as replicated.

Two kinds of replicated parameters have a partial gradient on each rank. Norms and positions see
only this rank's tokens under sequence parallelism. Copies of key-value heads serve only this rank's
query heads. `summed_over` adds up the partial gradients; without it the copies diverge. Without
sequence parallelism a norm sees all tokens on every rank and has the whole gradient: a sum over
ranks would be n times too large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labkit import global_norm
from labkit.collectives.backend import first_order_only
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.tensor_parallel.linear import REPLICATED, Sharding


def gather_full_state(model: nn.Module, group: Group | None = None) -> dict[str, Tensor]:
    """Gather the whole parameters on every rank, under the names that they have in state_dict().

    group: None takes the model's own. GPT(config).load_state_dict(...) takes the result. Every rank
    calls it. Wire: an all-gather of each sharded parameter, shares filled up to the longest.
    """
    group = group_of(model, group)
    gathered: dict[Tensor, Tensor] = {}  # a tied parameter is gathered once
    state = {}
    for name, parameter, sharding in parameters_with_shardings(model):
        if parameter not in gathered:
            gathered[parameter] = sharding.gather(parameter, group)
        state[name] = gathered[parameter]
    return state


def gather_full_gradients(model: nn.Module, group: Group | None = None) -> dict[str, Tensor]:
    """Gather the whole gradients on every rank, by name, without parameters that have none.

    Wire: an all-gather of each sharded gradient. Replicated gradients are not sent.
    """
    group = group_of(model, group)
    of_gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gather_full(model, of_gradients, group)


def gather_full(
    model: nn.Module, shares: Mapping[str, Tensor], group: Group | None = None
) -> dict[str, Tensor]:
    """Gather whole tensors on every rank from shards that have the shapes of the parameters.

    shares: gradients, or an optimizer's moments, by the parameter's name. Every rank gives the same
    names. ValueError for an unknown name or another shape. Wire: an all-gather of each sharded one.
    """
    group = group_of(model, group)
    known = {
        name: (parameter, sharding)
        for name, parameter, sharding in parameters_with_shardings(model)
    }
    for name, share in shares.items():
        if name not in known or share.shape != known[name][0].shape:
            raise ValueError(
                f"{name!r} of shape {tuple(share.shape)} is no parameter's; give tensors like "
                "named_parameters()"
            )
    return {name: known[name][1].gather(share, group) for name, share in shares.items()}


@torch.no_grad()
def load_full_state(
    model: nn.Module, state: Mapping[str, Tensor], group: Group | None = None
) -> None:
    """Fill this rank's shares from whole parameters, such as GPT.state_dict(). Wire: nothing.

    ValueError if a name is missing or unknown or a shape differs; nothing is changed then.
    """
    rank = group_of(model, group).rank
    found = list(parameters_with_shardings(model))
    if wrong := state.keys() ^ {name for name, _, _ in found}:
        where = "the model" if min(wrong) in state else "the state"
        raise ValueError(
            f"{min(wrong)!r} is not in {where}; load the state of a model of this config"
        )
    for name, parameter, sharding in found:
        if state[name].shape != sharding.full_shape(parameter):
            raise ValueError(
                f"{name} has shape {tuple(state[name].shape)} in the state, and the shares make "
                f"{tuple(sharding.full_shape(parameter))}; load the state of such a model"
            )
    for name, parameter, sharding in found:
        parameter.copy_(sharding.share(state[name], rank))


def parameters_with_shardings(model: nn.Module) -> Iterator[tuple[str, Tensor, Sharding]]:
    """Yield (name, parameter, sharding), a tied parameter under each of its names."""
    for path, module in model.named_modules(remove_duplicate=False):
        shardings: Mapping[str, Sharding] = getattr(module, "shardings", {})
        for name, parameter in module.named_parameters(recurse=False):
            yield f"{path}.{name}".lstrip("."), parameter, shardings.get(name, REPLICATED)


def group_of(model: nn.Module, group: Group | None) -> Group:
    """Return `group`, or the model's own, or the default one."""
    return chosen(getattr(model, "group", None) if group is None else group)


def summed_over(group: Group | None, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Return the same tensors, whose gradients backward adds up over the ranks of `group`.

    Pass all such parameters of a model to one call, before they are used. Autograd then calls its
    backward once, when the last of their gradients is there, so that one all-reduce carries all.
    Nothing has to be called afterwards, and several backward passes add up as usual. The cost: m
    microbatches need m all-reduces, while Megatron-LM needs one before the optimizer's step.
    `group`: None for torch.distributed's default one. TypeError for anything but tensors.
    Wire: backward one all-reduce of all their elements; a missing gradient counts as zeros.
    """
    group = chosen(group)
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
    holders = {
        parameter: sharding.num_holders(group)
        for _, parameter, sharding in parameters_with_shardings(model)
    }
    gradients = [(p.grad, num_holders) for p, num_holders in holders.items() if p.grad is not None]
    return global_norm.clip(gradients, max_norm, group)
