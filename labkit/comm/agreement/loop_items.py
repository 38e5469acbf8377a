"""Which element of a loop a call is for: bias, in `for t in {weight, bias}: sync(t)`.

Two turns of a loop call from the same place, so their calls read the same, and only the tensors
tell whether two ranks are in the same turn. A tensor has no name, but the program around the loop
has one for it (tensor_names.py): `bias`, `model.0.weight`, `tensors['bias']`. Or a name comes with
it, as in `for name, t in named`.

Such a name alone proves nothing, as ranks may use different ones. It is the same names in another
order that show a mistake (call_order.py). And only the names of what comes one by one, by a `for`,
a `pop` (takes.py) or a `map` (callbacks.py): with `x = mine if it_is_my_turn else zeros`, names
change places rightly. Parameters of a model are told without a loop too (parameter_paths.py).

A gradient goes by its parameter's name, and so does any view that begins where its tensor does.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

import torch

from labkit.comm.agreement.loops import Container, Loop
from labkit.comm.agreement.parameter_paths import Path, parameter_at
from labkit.comm.agreement.pools import Pools
from labkit.comm.agreement.tensor_names import INDEX, OF_A_MODULE, Name, entry, name_of, values_of

_Known = dict[int, tuple["weakref.ref[torch.Tensor]", Name | None]]


class Found(NamedTuple):
    """What an element is called; a place in a list is a weak name, as lists may differ."""

    text: str
    is_weak: bool = False


class LoopItems:
    """Names of the tensors that one rank's loops go through."""

    def __init__(self) -> None:
        """None is known yet."""
        # By identity, as tensors compare by elements. Each goes when its tensor does.
        self._known: _Known = {}
        self._parameters: _Known = {}
        self._pools = Pools()

    def of(
        self,
        x: torch.Tensor,
        frames: Sequence[FrameType],
        loops: Sequence[Loop],
        paths: Sequence[Path] = (),
    ) -> str | None:
        """The name of the element that `x` is, or is the gradient of; None where none is known.

        frames: from the call outwards; loops: around the call, the innermost first; paths: to
        parameters that the call may be for.
        """
        if sys.gettrace() is not None:
            return None  # a debugger: what is read of a frame would be written back to it
        if not (at := _address(x)):
            return None
        weak = None
        for loop in loops:
            found = self._in_loop(x, at, frames, loop, loops)
            if found is not None and not found.is_weak:
                return found.text
            weak = weak or found
        return self._of_parameter(x, at, frames, loops, paths) or (weak.text if weak else None)

    def parameter(
        self,
        x: torch.Tensor,
        frames: Sequence[FrameType],
        loops: Sequence[Loop],
        paths: Sequence[Path],
    ) -> str | None:
        """The name of the parameter that `x` is, or is the gradient of, or is made of."""
        at = _address(x) if sys.gettrace() is None else 0
        return self._of_parameter(x, at, frames, loops, paths) if at else None

    def _in_loop(
        self,
        x: torch.Tensor,
        at: int,
        frames: Sequence[FrameType],
        loop: Loop,
        loops: Sequence[Loop],
    ) -> Found | None:
        """What a loop's element is called that `x` is."""
        frame = frames[loop.depth]
        values = values_of(frame, loop.variables)
        elements = [x] if loop.is_direct else [_element(at, value) for value in values]
        found = [each for each in elements if each is not None]
        if found and self._is_of_a_pool(found[0], frames, loop.container):
            return None
        best = None
        for each in found:
            name = self._name(each, frames, loop, loops)
            if name is not None and (best is None or name[:4] < best[:4]):
                best = name
        if best is not None and best.sort != INDEX:
            return Found(best.item)
        for container, variable in loop.subscripts:
            value, key = values_of(frame, (container, variable))
            if _element(at, entry(value, key)) is not None:
                return Found(f"{container}[{key!r}]")
        text = _text_beside(frames, loop, values) if found else None
        if text is not None:
            return Found(text)
        return Found(best.item, is_weak=True) if best is not None else None

    def _is_of_a_pool(
        self, element: torch.Tensor, frames: Sequence[FrameType], container: Container | None
    ) -> bool:
        if container is None:
            return False
        (value,) = values_of(frames[container.depth], (container.variable,))
        return self._pools.is_pool(value, element)

    def _of_parameter(
        self,
        x: torch.Tensor,
        at: int,
        frames: Sequence[FrameType],
        loops: Sequence[Loop],
        paths: Sequence[Path],
    ) -> str | None:
        """What a module calls the parameter that `x` is, or is the gradient of, or is made of."""
        found: list[torch.nn.Parameter] = []
        for path in paths:
            parameter = parameter_at(path, frames)
            if parameter is not None and _element(at, parameter) is not None:
                break
            if parameter is not None and all(parameter is not each for each in found):
                found.append(parameter)
        else:
            # As many elements: no sum over it, as of its norm, in which order does not matter.
            if len(found) != 1 or not found[0].numel() == x.numel() > 1:
                return None
            parameter = found[0]
        assert parameter is not None
        name = self._name(parameter, frames, None, loops)
        return name.item if name is not None and name.sort == OF_A_MODULE else None

    def _name(
        self,
        element: torch.Tensor,
        frames: Sequence[FrameType],
        loop: Loop | None,
        loops: Sequence[Loop],
    ) -> Name | None:
        """What the frames around a loop call its element; without a loop, any frame."""
        names = self._parameters if loop is None else self._known
        around = frames[loop.depth :] if loop is not None else frames
        key = id(element)
        known, name = names.get(key, (None, None))
        if known is not None and known() is element and (not name or name.holds(element, around)):
            return name
        name = name_of(element, around, _hidden(loop, loops))
        names[key] = (weakref.ref(element, lambda _: names.pop(key, None)), name)
        return name


def may_hold_elements(loop: Loop, frames: Sequence[FrameType]) -> bool:
    """Whether a loop goes through tensors, or modules, and not through numbers."""
    is_of_tensors = any(
        isinstance(value, (torch.Tensor, torch.nn.Module))
        for value in values_of(frames[loop.depth], loop.variables)
    )
    return is_of_tensors or loop.is_direct or bool(loop.subscripts)


def _text_beside(frames: Sequence[FrameType], loop: Loop, values: Sequence[object]) -> str | None:
    """`name='bias'`, where a text comes with an element, or is the key that it was taken by."""
    beside = list(zip(loop.variables, values, strict=True))
    if loop.container is not None and loop.container.key is not None:
        key = loop.container.key
        beside += zip((key,), values_of(frames[loop.container.depth], (key,)), strict=True)
    texts = (f"{name}={value!r}" for name, value in beside if isinstance(value, str))
    return next(texts, None)


def _hidden(loop: Loop | None, loops: Sequence[Loop]) -> dict[int, frozenset[str]]:
    """By a frame's number, from the loop's own: names of nothing in particular."""
    if loop is not None:
        hidden = {each.depth - loop.depth: frozenset(each.variables) for each in loops}
        return {**hidden, 0: loop.rebound}
    hidden = {}
    for each in loops:
        hidden[each.depth] = hidden.get(each.depth, frozenset()) | each.rebound
    return hidden


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
