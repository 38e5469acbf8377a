"""Modules for code under test, made on the rank out of plain data; and what it left in them.

Inputs travel as plain data only, so a module is described by its parameters, by dotted name:
"layer.weight" is the parameter `weight` of a submodule `layer`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def module_of(
    parameters: Mapping[str, Tensor],
    frozen: Sequence[str] = (),
    tied: Mapping[str, str] | None = None,
) -> nn.Module:
    """A module with copies of `parameters`, without a forward pass.

    tied: other names of parameters, {name: the one that it is another name of}.
    """
    module = nn.Module()
    for name, value in parameters.items():
        owner, leaf = _owner_of(module, name)
        owner.register_parameter(leaf, nn.Parameter(value.clone(), name not in frozen))
    for name, first in (tied or {}).items():
        owner, leaf = _owner_of(module, name)
        owner.register_parameter(leaf, module.get_parameter(first))
    return module


def left_in(module: nn.Module, names: Sequence[str]) -> list[Tensor]:
    """Of each name its gradient, an empty tensor where there is none; then of each its value.

    What is no tensor any more, is left out: then there are too few.
    """
    held = dict(module.named_parameters())
    parameters = [held[name] for name in names if name in held]
    gradients = [torch.empty(0) if p.grad is None else p.grad for p in parameters]
    return [*gradients, *(p.detach() for p in parameters)]


def num_hooks(module: nn.Module) -> int:
    """On its submodules and parameters, of any kind."""
    attributes = ("_post_accumulate_grad_hooks", "_backward_hooks", "_forward_hooks")
    owners = [*module.modules(), *module.parameters()]
    return sum(len(getattr(each, name, None) or ()) for each in owners for name in attributes)


def _owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that has the parameter, made where there is none yet; and its name in there."""
    *path, leaf = name.split(".")
    for each in path:
        if each not in dict(module.named_children()):
            module.add_module(each, nn.Module())
        module = module.get_submodule(each)
    return module, leaf
