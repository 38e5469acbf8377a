"""The `for` loops around a call, from its bytecode: which variables they go through."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import NamedTuple


class Loop(NamedTuple):
    """A `for` around a call: `depth` is the number of its frame, from the call outwards."""

    depth: int
    variables: tuple[str, ...]
    rebound: frozenset[str]
    """What the loop's body assigns to, its variables too: names of nothing in particular."""
    subscripts: tuple[tuple[str, str], ...] = ()
    """`("tensors", "name")` for each `tensors[name]` in the body, where name is such a variable."""


def loops_around(depth: int, code: CodeType, instruction: int) -> list[Loop]:
    """The loops of a frame that stands at `instruction` (its f_lasti), the innermost first."""
    loops = []
    body = list(dis.get_instructions(code))
    for number, each in enumerate(body):
        if each.opname == "FOR_ITER" and each.offset < instruction < each.argval:
            inside = [one for one in body if each.offset < one.offset < each.argval]
            rebound = frozenset(name for one in inside for name in _stored(one))
            variables = tuple(_targets(body[number + 1 :]))
            loops.append(Loop(depth, variables, rebound, tuple(_subscripts(inside, variables))))
    return loops[::-1]


def _targets(following: Sequence[dis.Instruction]) -> Iterator[str]:
    """`name` and `p` in `for name, p in ...`: what is stored right after an element comes."""
    wanted = 1
    for each in following:
        names = _stored(each)
        if each.opname == "UNPACK_SEQUENCE":
            wanted += each.argval - 1
        elif names:
            yield from names
            wanted -= len(names)
        else:
            return
        if wanted <= 0:
            return


def _stored(instruction: dis.Instruction) -> tuple[str, ...]:
    """The variables that an instruction assigns to."""
    kind, argument = instruction.opname, instruction.argval
    if not kind.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")):
        return ()
    if isinstance(argument, tuple):  # two instructions in one, as Python 3.13 has them
        return argument[:1] if "LOAD" in kind else argument
    return (argument,)


def _subscripts(body: Sequence[dis.Instruction], keys: Sequence[str]) -> Iterator[tuple[str, str]]:
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
