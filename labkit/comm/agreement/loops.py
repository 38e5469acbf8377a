"""The `for` loops around a call, from its bytecode: which variables they go through."""

from __future__ import annotations

import dis
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

_SIMPLE = re.compile("(?:LOAD|STORE)_FAST(?:_BORROW)?")
_FUSED = re.compile(f"{_SIMPLE.pattern}_{_SIMPLE.pattern}")


class Container(NamedTuple):
    """`tensors` and `name` in `tensors.pop(name)`: variables of the frame that has this number."""

    depth: int
    variable: str
    key: str | None = None


class Loop(NamedTuple):
    """Elements that come one by one: in a `for` around a call, as takes.py or callbacks.py say."""

    depth: int
    """The number of its frame, from the call outwards."""
    variables: tuple[str, ...]
    rebound: frozenset[str]
    """What the loop's body assigns to, its variables too: names of nothing in particular."""
    subscripts: tuple[tuple[str, str], ...] = ()
    """`("tensors", "name")` for each `tensors[name]` in the body, where name is such a variable."""
    is_direct: bool = False
    """The call's own tensor is an element: no variable holds it."""
    container: Container | None = None
    """What the elements are taken out of; None for a `for`, which leaves them where they are."""

    def moved(self, by: int) -> Loop:
        """The same where the call is deeper by so many frames."""
        container = self.container
        if container is not None:
            container = container._replace(depth=container.depth + by)
        return self._replace(depth=self.depth + by, container=container)


def handed_to(depth: int, callee: CodeType | None, container: Container | None = None) -> Loop:
    """Of a frame that hands over an element: what holds it in the code that it has called.

    callee: None where that is the group's own method.
    """
    if callee is None:
        return Loop(depth, (), frozenset(), (), True, container)
    assigned = {name for one in instructions(callee) for name in stored(one)}
    names = callee.co_varnames[: callee.co_argcount]
    variables = tuple(name for name in names if name not in assigned)
    own = frozenset((*callee.co_varnames, *callee.co_cellvars))
    return Loop(depth - 1, variables, own, (), False, container)


@lru_cache(maxsize=256)
def instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """A function's bytecode, with at most one variable in each. To take it apart takes long."""
    return tuple(part for one in dis.get_instructions(code) for part in _parts(one))


def _parts(one: dis.Instruction) -> list[dis.Instruction]:
    """Since Python 3.13 two neighbours may be one, as STORE_FAST_LOAD_FAST with two names."""
    if not _FUSED.fullmatch(one.opname):
        return [one]
    opnames = _SIMPLE.findall(one.opname)
    pairs = zip(opnames, one.argval, strict=True)
    return [one._replace(opname=opname, argval=name) for opname, name in pairs]


def number_of(body: Sequence[dis.Instruction], instruction: int) -> int:
    """The place in the body of what a frame does whose f_lasti this is.

    Which may be an entry of that instruction's inline cache.
    """
    return bisect_right(body, instruction, key=lambda one: one.offset) - 1


def loops_around(depth: int, code: CodeType, instruction: int) -> list[Loop]:
    """The loops of a frame that stands at `instruction` (its f_lasti), the innermost first."""
    loops = []
    body = instructions(code)
    for number, each in enumerate(body):
        if each.opname == "FOR_ITER" and each.offset < instruction < each.argval:
            inside = [one for one in body if each.offset < one.offset < each.argval]
            rebound = frozenset(name for one in inside for name in stored(one))
            # What the body assigns again is no element: `if not my_turn: t = zeros`.
            times = Counter(name for one in inside for name in stored(one))
            variables = tuple(v for v in targets(body[number + 1 :]) if times[v] == 1)
            loops.append(Loop(depth, variables, rebound, tuple(subscripts(inside, variables))))
    return loops[::-1]


def innermost_loop(body: Sequence[dis.Instruction], offset: int) -> list[dis.Instruction]:
    """The body of the `for` or `while` around an instruction; nothing where there is none."""
    ends: dict[int, int] = {}
    for each in body:
        if "JUMP" in each.opname and isinstance(each.argval, int) and each.argval < each.offset:
            ends[each.argval] = max(each.offset, ends.get(each.argval, 0))
    around = [begin for begin, end in ends.items() if begin <= offset <= end]
    return [each for each in body if around and max(around) <= each.offset <= ends[max(around)]]


def targets(following: Sequence[dis.Instruction]) -> Iterator[str]:
    """`name` and `p` in `for name, p in ...`: what is stored right after an element comes."""
    wanted = 1
    for each in following:
        names = stored(each)
        if each.opname == "UNPACK_SEQUENCE":
            wanted += each.argval - 1
        elif names:
            yield from names
            wanted -= len(names)
        else:
            return
        if wanted <= 0:
            return


def stored(instruction: dis.Instruction) -> tuple[str, ...]:
    """The variables that an instruction assigns to."""
    kind, argument = instruction.opname, instruction.argval
    if not kind.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")):
        return ()
    if isinstance(argument, tuple):  # two instructions in one, as Python 3.13 has them
        return argument[:1] if "LOAD" in kind else argument
    return (argument,)


def subscripts(body: Sequence[dis.Instruction], keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`tensors[name]` and `self.tensors[name]`: what is loaded, then the key, then the entry."""
    for number, each in enumerate(body):
        is_subscript = each.opname == "BINARY_SUBSCR" or each.argrepr == "[]"
        if not is_subscript or number < 2:
            continue
        *_, owner, container, key = [None, *body[max(0, number - 3) : number]]
        assert container is not None and key is not None
        if not key.opname.startswith("LOAD_") or key.argval not in keys:
            continue
        if container.opname == "LOAD_ATTR" and owner is not None and owner.argval == "self":
            yield f"self.{container.argval}", key.argval
        elif container.opname.startswith("LOAD_"):
            yield container.argval, key.argval
