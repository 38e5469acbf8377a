"""Which parameter of a model a call is for, where the program's text leads to it.

    world.all_reduce(p.grad)                    p
    world.all_reduce(model[i].weight.grad)      model[i].weight
    g = p.grad / world.size                     p: what is passed is made of it alone,
    world.all_reduce(g)                         and has as many elements

A parameter is the same thing on every rank, however the program comes to it: in a hook, in a
branch, by an index. So where sums are made, parameters alone tell the order. (Other tensors do not:
with `x = mine if it_is_my_turn else zeros`, names change places rightly.)
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from labkit.comm.agreement.loops import instructions, number_of, stored
from labkit.comm.agreement.tensor_names import entry, values_of

_VARIABLE = ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_GLOBAL")
_HELD_BY_MODULES = ("_parameters", "_modules", "_buffers")


class Step(NamedTuple):
    """`.weight`; `[0]`; `[i]`, where `key` is the name of a variable."""

    kind: str
    key: Any


class Path(NamedTuple):
    """What a frame's code says: a variable, and the way from there."""

    depth: int
    """The number of the frame, from the call outwards."""
    root: str
    steps: tuple[Step, ...]


def paths_at(depth: int, code: CodeType, instruction: int) -> list[Path]:
    """Those that the call at `instruction` (a frame's f_lasti) mentions.

    Also those from which, in lines above it, variables were made that it mentions.
    """
    return [path._replace(depth=depth) for path in _paths_in(code, instruction)]


@lru_cache(maxsize=1024)
def _paths_in(code: CodeType, instruction: int) -> tuple[Path, ...]:
    """Looked up once: a training loop is a frame of every call that its step makes."""
    body = instructions(code)
    made_of: dict[str, set[Path]] = {}
    mentioned: set[Path] = set()
    caller = number_of(body, instruction)
    for number, one in enumerate(body[:caller]):
        mentioned |= _sources(body, number, made_of)
        names = stored(one)
        for name in names:
            made_of[name] = made_of.get(name, set()) | mentioned
        if names or one.opname in ("POP_TOP", "FOR_ITER") or "JUMP" in one.opname:
            mentioned = set()
    span = body[caller].positions
    inside = (n for n, each in enumerate(body[:caller]) if _is_in(each.positions, span))
    found = [_sources(body, n, made_of) for n in inside]
    return tuple(sorted(set().union(*found), key=repr))


def to_parameters(paths: Sequence[Path], frames: Sequence[FrameType]) -> tuple[Path, ...]:
    """Those that lead to parameters now, cut off there; of several to the same one the shortest."""
    shortest: dict[int, Path] = {}
    for path in sorted(paths, key=lambda path: (path.depth, len(path.steps))):
        for length in range(len(path.steps) + 1):
            short = path._replace(steps=path.steps[:length])
            parameter = parameter_at(short, frames)
            if parameter is not None:
                shortest.setdefault(id(parameter), short)
                break
    return tuple(shortest.values())


def parameter_at(path: Path, frames: Sequence[FrameType]) -> torch.nn.Parameter | None:
    """What a path leads to, if that is a parameter, or something of one, as its gradient."""
    names = [path.root, *(step.key for step in path.steps if step.kind == "[variable]")]
    value, *keys = values_of(frames[path.depth], names)
    for step in path.steps:
        if isinstance(value, torch.Tensor):
            break
        key = keys.pop(0) if step.kind == "[variable]" else step.key
        value = _attribute(value, key) if step.kind == "." else _item(value, key)
    return value if isinstance(value, torch.nn.Parameter) else None


def _sources(
    body: Sequence[dis.Instruction], number: int, made_of: dict[str, set[Path]]
) -> set[Path]:
    """The path that begins at an instruction, and those of which its variable was made."""
    one = body[number]
    if not one.opname.startswith(_VARIABLE) or not isinstance(one.argval, str):
        return set()
    following = [each for each in body[number + 1 : number + 20] if each.opname != "PRECALL"]
    return {Path(0, one.argval, tuple(_steps(following)))} | made_of.get(one.argval, set())


def _steps(following: Sequence[dis.Instruction]) -> list[Step]:
    """What is done to a value right after it was loaded: attributes, and entries by one key."""
    steps = []
    while following:
        one, *rest = following
        if one.opname == "LOAD_ATTR":
            steps.append(Step(".", one.argval))
        elif rest and (rest[0].opname == "BINARY_SUBSCR" or rest[0].argrepr == "[]"):
            if one.opname == "LOAD_CONST":
                steps.append(Step("[]", one.argval))
            elif one.opname.startswith(_VARIABLE):
                steps.append(Step("[variable]", one.argval))
            else:
                break
            rest = rest[1:]
        else:
            break
        following = rest
    return steps


def _is_in(inner: dis.Positions | None, outer: dis.Positions | None) -> bool:
    """Whether a piece of source text lies in another one."""
    if inner is None or outer is None or None in (*inner, *outer):
        return False
    line, end_line, column, end_column = inner
    first, last, start, end = outer
    return (first, start) <= (line, column) and (end_line, end_column) <= (last, end)


def _attribute(owner: object, name: str) -> object:
    """What an object holds by this name; no property is asked, as that runs code."""
    held = getattr(owner, "__dict__", {})
    if isinstance(owner, torch.nn.Module):
        held = {**held, **{k: v for each in _HELD_BY_MODULES for k, v in held[each].items()}}
    return held.get(name)


def _item(owner: object, key: object) -> object:
    """An entry of a dict, list or tuple, or of torch's lists of modules and parameters."""
    if isinstance(owner, torch.nn.Module):
        return _attribute(owner, str(key))
    return entry(owner, key)
