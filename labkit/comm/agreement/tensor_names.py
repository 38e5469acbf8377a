"""By which names a program knows its tensors: what the frames of a call hold.

In the order in which they are looked for; of several of one sort the innermost frame's:

    model.0.weight     what a module calls its parameter or buffer
    tensors['bias']    a key of a dict
    bias               a variable
    tensors[3]         a place in a list or tuple

Variables are those of a function, the globals that it mentions, and what `self` holds.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple

import torch

from labkit.comm.agreement import items
from labkit.comm.callers import is_foreign

OF_A_MODULE, _KEY, _VARIABLE, INDEX = range(4)
Key = str | int
# A program that mentions these may hold the same copy of its variables as we do.
_READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})
_PYTESTS = "@py_builtins"  # in functions whose asserts pytest has rewritten
_Paths = dict[int, tuple["weakref.ref[torch.Tensor]", str]]
# How each module calls its tensors, by their identity, when it was first asked: that takes long.
_OF_MODULES: weakref.WeakKeyDictionary[torch.nn.Module, _Paths] = weakref.WeakKeyDictionary()


class Name(NamedTuple):
    """A name, and where it is from; the best of several comes first."""

    sort: int
    depth: int
    """Number of the frame, from the innermost one that was searched."""
    num_parts: int
    """Below zero: of two modules, the outer one's name is longer."""
    text: str
    variable: str
    key: Key | None
    """In a dict, list or tuple that the variable is; None where that is the tensor itself."""
    also: Name | None = None
    """A second name that is as good as this one."""

    @property
    def item(self) -> str:
        """What a call is for that passes this tensor."""
        return items.said([self.text] if self.also is None else [self.text, self.also.text])

    def holds(self, tensor: torch.Tensor, frames: Sequence[FrameType]) -> bool:
        """Whether these frames still call the tensor so."""
        if self.also is not None and not self.also.holds(tensor, frames):
            return False
        if self.sort == OF_A_MODULE:
            return True
        if self.depth >= len(frames):
            return False
        (value,) = values_of(frames[self.depth], (self.variable,))
        return (value if self.key is None else entry(value, self.key)) is tensor


def values_of(frame: FrameType, names: Sequence[str]) -> list[Any]:
    """What a frame holds in these variables, globals and, as in `self.x`, attributes; or None."""
    variables = frame.f_locals
    values = []
    for name in names:
        owner, dot, attribute = name.partition(".")
        value = variables.get(owner)
        if value is None and owner not in variables:
            value = frame.f_globals.get(owner)
        values.append(getattr(value, "__dict__", {}).get(attribute) if dot else value)
    _let_go(frame, variables)
    return values


def _let_go(frame: FrameType, variables: dict[str, Any]) -> None:
    """Empty what a frame has copied of its variables: tensors would live longer otherwise."""
    code = frame.f_code
    is_copy = code.co_flags & inspect.CO_OPTIMIZED and isinstance(variables, dict)
    mentioned = _READS_LOCALS.intersection(code.co_names)
    if _PYTESTS in code.co_names:
        mentioned -= {"locals"}  # its own asserts, which look and keep nothing
    if is_copy and not mentioned:
        variables.clear()


def name_of(
    tensor: torch.Tensor, frames: Sequence[FrameType], hidden: Mapping[int, Collection[str]]
) -> Name | None:
    """The best name that the frames have for the tensor, or two; None where they have none.

    frames: from the call outwards. hidden: by a frame's number, its variables that do not count.
    """
    found = []
    for depth, frame in enumerate(frames):
        if is_foreign(frame.f_code.co_filename):
            continue
        variables = frame.f_locals
        found += [
            Name(sort, depth, -text.count("."), text, variable, key)
            for variable, value in _in_sight(frame, variables)
            if variable not in hidden.get(depth, ())
            for sort, text, key in _names_in(variable, value, tensor)
        ]
        _let_go(frame, variables)
    if not found:
        return None
    best, *others = sorted(set(found), key=lambda name: name[:4])
    has_another = bool(others) and others[0][:3] == best[:3]
    return best._replace(also=others[0]) if has_another else best


def entry(value: object, key: object) -> object:
    """An entry of a dict, list or tuple; None where there is none."""
    if isinstance(value, dict):
        return value.get(key) if isinstance(key, Key) else None
    is_place = isinstance(value, list | tuple) and isinstance(key, int) and 0 <= key < len(value)
    return value[key] if is_place else None  # type: ignore[index]


def _in_sight(frame: FrameType, variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Variables, globals that the code mentions, and what `self` holds, by name."""
    known = frame.f_globals
    mentioned = () if variables is known else frame.f_code.co_names
    own = getattr(variables.get("self"), "__dict__", {})
    return chain(
        variables.items(),
        ((name, known[name]) for name in mentioned if name in known),
        ((f"self.{name}", value) for name, value in own.items()),
    )


def _names_in(
    variable: str, value: object, tensor: torch.Tensor
) -> Iterator[tuple[int, str, Key | None]]:
    """What the tensor is called in one variable, if it is in there: the sort, the name, the key."""
    if value is tensor:
        yield _VARIABLE, variable, None
    elif isinstance(value, torch.nn.Module):
        reference, path = _paths_in(value).get(id(tensor), (None, ""))
        if reference is not None and reference() is tensor:
            yield OF_A_MODULE, f"{variable}.{path}", None
    elif isinstance(value, dict):
        for key, each in value.items():
            if each is tensor and isinstance(key, Key):
                yield _KEY, f"{variable}[{key!r}]", key
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            if each is tensor:
                yield INDEX, f"{variable}[{index}]", index


def _paths_in(module: torch.nn.Module) -> _Paths:
    paths = _OF_MODULES.get(module)
    if paths is None:
        named = chain(module.named_parameters(), module.named_buffers())
        paths = {id(each): (weakref.ref(each), path) for path, each in named}
        _OF_MODULES[module] = paths
    return paths
