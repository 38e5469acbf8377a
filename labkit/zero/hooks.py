"""Hooks on parameters and modules that end with whoever set them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle


def on_gradient(parameter: Tensor, method: Callable[..., None], *args: Any) -> RemovableHandle:
    """Call `method(*args, parameter)` when a gradient is there, for as long as its owner lives.

    The garbage collector cannot look into a parameter's hooks: by a strong reference they would
    keep the owner for ever.
    """
    return parameter.register_post_accumulate_grad_hook(weakly(method, *args))


def weakly(method: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """`method` with these arguments before others, for as long as its owner lives; then nothing."""
    weak = weakref.WeakMethod(method)

    def call(*others: Any, **named: Any) -> Any:
        alive = weak()
        return None if alive is None else alive(*args, *others, **named)

    return call


def remove_with(owner: object, handles: list[RemovableHandle]) -> None:
    """Remove hooks when their owner is gone."""
    weakref.finalize(owner, _remove, handles).atexit = False


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
