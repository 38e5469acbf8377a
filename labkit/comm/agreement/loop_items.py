"""Which element of a loop a call is for: bias, in `for t in {weight, bias}: sync(t)`.

Two turns of a loop call from the same place, so their calls read the same, and only the tensors
tell whether two ranks are in the same turn. A tensor has no name, but the program around the loop
has one for it (tensor_names.py): `bias`, `model.0.weight`, `tensors['bias']`.

Such a name alone proves nothing, as ranks may use different ones. It is the same names in another
order that show a mistake (call_order.py). And only the names of what a `for` goes through: with
`x = mine if it_is_my_turn else zeros`, names change places rightly.

A gradient goes by its parameter's name, and so does any view that begins where its tensor does.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from types import FrameType

import torch

from labkit.comm.agreement.loops import Loop
from labkit.comm.agreement.tensor_names import Name, entry, name_of, values_of


class LoopItems:
    """Names of the tensors that one rank's loops go through."""

    def __init__(self) -> None:
        """None is known yet."""
        # By identity, as tensors compare by elements. Each goes when its tensor does.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Name | None]] = {}

    def of(self, x: torch.Tensor, frames: Sequence[FrameType], loops: Sequence[Loop]) -> str | None:
        """The name of the element that `x` is, or is the gradient of; None where none is known.

        frames: from the call outwards; loops: around the call, the innermost first.
        """
        if sys.gettrace() is not None:
            return None  # a debugger: what is read of a frame would be written back to it
        if not (at := _address(x)):
            return None
        for loop in loops:
            frame = frames[loop.depth]
            for value in values_of(frame, loop.variables):
                element = _element(at, value)
                if element is not None and (name := self._name(element, frames, loop, loops)):
                    return name.text
            for container, variable in loop.subscripts:
                value, key = values_of(frame, (container, variable))
                if _element(at, entry(value, key)) is not None:
                    return f"{container}[{key!r}]"
        return None

    def _name(
        self,
        element: torch.Tensor,
        frames: Sequence[FrameType],
        loop: Loop,
        loops: Sequence[Loop],
    ) -> Name | None:
        known, name = self._known.get(id(element), (None, None))
        around = frames[loop.depth :]
        if known is not None and known() is element and (not name or name.holds(element, around)):
            return name
        hidden = {each.depth - loop.depth: each.variables for each in loops}
        name = name_of(element, around, {**hidden, 0: loop.rebound})
        key = id(element)
        self._known[key] = (weakref.ref(element, lambda _: self._known.pop(key, None)), name)
        return name


def _element(at: int, value: object) -> torch.Tensor | None:
    """The tensor that begins at `at`, or whose gradient does: the value, or one of that module."""
    if isinstance(value, torch.Tensor):
        if _address(value) == at:
            return value
        # Of others torch warns that they have no gradient.
        return value if value.is_leaf and _address(value.grad) == at else None
    if isinstance(value, torch.nn.Module):
        return next((p for p in value.parameters() if _element(at, p) is not None), None)
    return None


def _address(x: torch.Tensor | None) -> int:
    """Where a tensor's first element is; 0 for one without elements, or without memory."""
    return x.data_ptr() if x is not None and x.layout is torch.strided else 0
