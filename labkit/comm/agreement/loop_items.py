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
from collections.abc import Mapping, Sequence
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
        names = [
            self._name(each, frames[loop.depth :], _hidden(loop, loops), self._known)
            for each in found
        ]
        best = min((name for name in names if name), key=lambda name: name[:4], default=None)
        if best is not None and best.sort != INDEX:
            return Found(best.text)
        for container, variable in loop.subscripts:
            value, key = values_of(frame, (container, variable))
            if _element(at, entry(value, key)) is not None:
                return Found(f"{container}[{key!r}]")
        text = _text_beside(frames, loop, values) if found else None
        if text is not None:
            return Found(text)
        return Found(best.text, is_weak=True) if best is not None else None

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
        found = [p for path in paths if (p := parameter_at(path, frames)) is not None]
        parameter = next((p for p in found if _element(at, p) is not None), None)
        if parameter is None and len({id(p) for p in found}) == 1:
            # As many elements: no sum over it, as of its norm, in which order does not matter.
            parameter = found[0] if found[0].numel() == x.numel() > 1 else None
        if parameter is None:
            return None
        hidden: dict[int, frozenset[str]] = {}
        for loop in loops:
            hidden[loop.depth] = hidden.get(loop.depth, frozenset()) | loop.rebound
        name = self._name(parameter, frames, hidden, self._parameters)
        return name.text if name is not None and name.sort == OF_A_MODULE else None

    @staticmethod
    def _name(
        element: torch.Tensor,
        frames: Sequence[FrameType],
        hidden: Mapping[int, frozenset[str]],
        names: _Known,
    ) -> Name | None:
        key = id(element)
        known, name = names.get(key, (None, None))
        if known is not None and known() is element and (not name or name.holds(element, frames)):
            return name
        name = name_of(element, frames, hidden)
        names[key] = (weakref.ref(element, lambda _: names.pop(key, None)), name)
        return name


def _text_beside(frames: Sequence[FrameType], loop: Loop, values: Sequence[object]) -> str | None:
    """`name='bias'`, where a text comes with an element, or is the key that it was taken by."""
    beside = list(zip(loop.variables, values, strict=True))
    if loop.container is not None and loop.container.key is not None:
        key = loop.container.key
        beside += zip((key,), values_of(frames[loop.container.depth], (key,)), strict=True)
    texts = (f"{name}={value!r}" for name, value in beside if isinstance(value, str))
    return next(texts, None)


def _hidden(loop: Loop, loops: Sequence[Loop]) -> dict[int, frozenset[str]]:
    """By a frame's number, from the loop's own: names of nothing in particular."""
    hidden = {each.depth - loop.depth: frozenset(each.variables) for each in loops}
    return {**hidden, 0: loop.rebound}


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
