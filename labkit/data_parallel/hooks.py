"""Being called when a gradient is there, as long as the wrapped module lives, or is wrapped anew.

    wrapped module --holds--> hooks --hold--> wrapper
    parameter's hook ----weakly----> a method of the wrapper

A module that is wrapped again belongs to the newest wrapper: `unhook` ends the work of the one
before, or both would reduce. Wire: nothing; that is what the method does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, WeakValueDictionary

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from labkit.data_parallel.replica import Replica

_HOOKS = "_hooks_of_labkit"
# By id of a parameter: who averages its gradient in backward, and lives as long as its module.
_AVERAGED_BY: WeakValueDictionary[int, Replica] = WeakValueDictionary()


class _Hooks(list[RemovableHandle]):
    """Of a module's wrapper, which lives as long as the module. A copy of the module has none."""

    def __init__(self, wrapper: Replica) -> None:
        super().__init__()
        self._wrapper = wrapper

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return list, ()


def hook(wrapper: Replica, method: Callable[[str, Tensor], None]) -> None:
    """Call `method(name, parameter)` when a gradient of the wrapped module is there.

    The garbage collector cannot look into a parameter's hooks: by a strong reference they would
    keep the wrapper, the module and its buckets for ever.
    """
    weak, hooks = WeakMethod(method), _Hooks(wrapper)
    for name, parameter in wrapper.trained.items():
        _AVERAGED_BY[id(parameter)] = wrapper
        hooks.append(parameter.register_post_accumulate_grad_hook(partial(_call, weak, name)))
    wrapper.module.__dict__[_HOOKS] = hooks


def _call(method: WeakMethod[Any], name: str, parameter: Tensor) -> None:
    if (alive := method()) is not None:
        alive(name, parameter)


def unhook(module: nn.Module) -> None:
    """End the work of an earlier wrapper of the same module."""
    for each in module.__dict__.pop(_HOOKS, []):
        each.remove()
    for parameter in module.parameters():
        _AVERAGED_BY.pop(id(parameter), None)


def is_averaged_in_backward(parameter: Tensor) -> bool:
    """Whether a wrapper has a hook on it that does so."""
    return id(parameter) in _AVERAGED_BY
