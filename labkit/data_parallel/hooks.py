"""Hooks on parameters and modules that end with their owner.

    parameter, module ----weakly----> a method of the owner         the owner may go first
    wrapped module --holds--> hooks --holds--> its wrapper          the wrapper stays as long

The garbage collector cannot look into a parameter's hooks. By a strong reference they would keep
the owner, the module and its buckets for ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_HOOKS = "_hooks_of_labkit"
# By id of a parameter: the wrapper that averages its gradient in backward.
_AVERAGED_BY: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()


def weakly(method: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """`method` with these arguments before others, for as long as its owner lives; then nothing."""
    weak = weakref.WeakMethod(method)

    def call(*others: Any, **named: Any) -> Any:
        alive = weak()
        return None if alive is None else alive(*args, *others, **named)

    return call


def on_gradient(parameter: Tensor, method: Callable[..., None], *args: Any) -> RemovableHandle:
    """Call `method(*args, parameter)` when backward has finished a gradient."""
    return parameter.register_post_accumulate_grad_hook(weakly(method, *args))


def remove_with(owner: object, handles: Iterable[RemovableHandle]) -> None:
    """Remove hooks when their owner is gone."""
    weakref.finalize(owner, _remove, handles).atexit = False


def average_in_backward(
    wrapper: nn.Module, module: nn.Module, on_each: Callable[[Tensor], None]
) -> None:
    """Call `on_each(parameter)`, a method of `wrapper`, with every gradient of `module`.

    The module keeps its wrapper alive. See `unhook` for a module that is wrapped again.
    TypeError for parameters that the wrapper of another module averages: both would, so that a
    gradient would be divided by the number of ranks twice.
    """
    shared = [name for name, p in module.named_parameters() if is_averaged_in_backward(p)]
    if shared:
        raise TypeError(
            f"{', '.join(shared)}: averaged in backward by the wrapper of another module, and two "
            "wrappers would divide a gradient by the number of ranks twice. Put the modules that "
            "share parameters into one module, and wrap that one alone"
        )
    hooks = _Hooks(wrapper)
    for parameter in module.parameters():
        if parameter.requires_grad:
            _AVERAGED_BY[id(parameter)] = wrapper
            hooks.append(on_gradient(parameter, on_each))
    module.__dict__[_HOOKS] = hooks


def unhook(module: nn.Module) -> None:
    """End the work of an earlier wrapper of the same module, or both would reduce."""
    hooks = module.__dict__.pop(_HOOKS, [])
    _remove(hooks)
    for parameter in module.parameters():
        if _AVERAGED_BY.get(id(parameter)) is getattr(hooks, "wrapper", None):
            _AVERAGED_BY.pop(id(parameter), None)


def is_averaged_in_backward(parameter: Tensor) -> bool:
    """Whether a wrapper has a hook on it that does so."""
    return id(parameter) in _AVERAGED_BY


class _Hooks(list[RemovableHandle]):
    """Hooks and their wrapper, as an attribute of the module. A copy of the module has none."""

    def __init__(self, wrapper: nn.Module) -> None:
        super().__init__()
        self.wrapper = wrapper

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return list, ()


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
