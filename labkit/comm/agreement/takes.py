"""Elements that a program takes out of a list, a dict or an iterator, one for each call.

    while tensors:                     for name in names:               elements = iter(tensors)
        sync(tensors.pop())                t = tensors.pop(name)        t = next(elements)
                                           sync(t)                      sync(t)

As in a `for`, each comes once. Not where something may come back into the container: a pool of
buffers may hand them out in any order. So not where the same function fills it, nor where the loop
around does anything with it but take, count and ask whether it is empty: `free += [t]`, and also
`give_back(free, t)`. And only out of what a variable holds: to an attribute, others may give back
what they took.
"""

from __future__ import annotations

import dis
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

from labkit.comm.agreement.loops import (
    Container,
    Loop,
    handed_to,
    innermost_loop,
    instructions,
    number_of,
    stored,
    subscripts,
    targets,
)

_POPS = frozenset({"pop", "popleft", "popitem"})
_PUTS = frozenset("append appendleft extend extendleft insert add update setdefault rotate".split())
_VARIABLE = ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_GLOBAL")
_TESTS = ("POP_JUMP", "JUMP_IF", "TO_BOOL", "UNARY_NOT")
# Between an element that is passed as it is and the call: other arguments, which are made by none.
_ARGUMENTS = (*_VARIABLE, "LOAD_CONST", "KW_NAMES", "PRECALL")
# Those end, and go through what was there when they began; a generator may hand out a pool.
_ITERABLES: tuple[Any, ...] = ([], (), set(), {}, {}.values(), {}.items())
_ITERATORS = tuple(
    type(go(each))
    for go in (iter, reversed)
    for each in _ITERABLES
    if not (go is reversed and isinstance(each, (tuple, set)))
)
Body = Sequence[dis.Instruction]


class _Take(NamedTuple):
    """A call that takes an element out: numbers of instructions in the body."""

    begin: int
    end: int
    container: str


def takes_of(depth: int, code: CodeType, instruction: int, callee: CodeType | None) -> list[Loop]:
    """What a frame that stands at `instruction` (its f_lasti) has taken out, and may pass on.

    callee: the code that it has called there; None where that is the group's own method.
    """
    body = instructions(code)
    takes = list(_takes_in(body))
    caller = body[number_of(body, instruction)].offset
    found = []
    for take in takes:
        key = _key(body[take.begin + 1 : take.end])
        container = Container(depth, take.container, key)
        if _is_passed_as_it_is(body[take.end + 1 :], caller):
            found.append(handed_to(depth, callee, container))
            continue
        variables = _always_taken(take, takes, body, code)
        if variables:
            loop = innermost_loop(body, body[take.begin].offset)
            rebound = frozenset((*variables, *(name for one in loop for name in stored(one))))
            entries = tuple(subscripts(loop, variables))
            found.append(Loop(depth, variables, rebound, entries, False, container))
    return found


def _always_taken(
    take: _Take, takes: Sequence[_Take], body: Body, code: CodeType
) -> tuple[str, ...]:
    """The variables that a take assigns to, and nothing else does."""
    assigned = Counter(name for one in body for name in stored(one))
    by_takes = Counter(name for each in takes for name in targets(body[each.end + 1 :]))
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return tuple(
        name
        for name in targets(body[take.end + 1 :])
        if assigned[name] == by_takes[name] and name not in arguments
    )


def is_taken_from(container: object) -> bool:
    """Whether each element of a container that a program takes from comes once."""
    return isinstance(container, (list, dict, set, deque, *_ITERATORS))


def _takes_in(body: Body) -> Iterator[_Take]:
    """`tensors.pop()` and `next(elements)`, of containers that nothing is put into."""
    filled = {body[n - 1].argval for n, one in enumerate(body) if n and one.argval in _PUTS}
    filled |= {body[n - 2].argval for n, one in enumerate(body) if one.opname == "STORE_SUBSCR"}
    for number, one in enumerate(body):
        is_pop = one.opname in ("LOAD_METHOD", "LOAD_ATTR") and one.argval in _POPS
        is_next = one.opname == "LOAD_GLOBAL" and one.argval == "next"
        if not number or not (is_pop or is_next):
            continue
        owner = body[number - 1 if is_pop else number + 1]
        end = _end_of_call(body, number)
        if end is None or not owner.opname.startswith(_VARIABLE) or owner.argval in filled:
            continue
        around = innermost_loop(body, one.offset) or body[number:]
        if _may_come_back(owner.argval, around):
            continue
        # With a second argument another tensor may come: `next(elements, zeros)`.
        if (body[end].arg or 0) <= 1:
            yield _Take(number, end, owner.argval)


def _may_come_back(container: str, body: Body) -> bool:
    """Whether the variable is used otherwise than in `c.pop()`, `next(c)`, `len(c)`, `while c`."""
    for before, one, after in zip((None, *body), body, body[1:], strict=False):
        if one.argval != container or not one.opname.startswith(_VARIABLE):
            continue
        is_asked = before is not None and before.argval in ("next", "len")
        if not (is_asked or after.argval in _POPS or after.opname.startswith(_TESTS)):
            return True
    return False


def _end_of_call(body: Body, number: int) -> int | None:
    """The number of the instruction that calls what the n-th one loads."""
    first = body[number].positions
    if first is None:
        return None
    begin = (first.lineno, first.col_offset)
    for later in range(number + 1, len(body)):
        each = body[later].positions
        if body[later].opname != "CALL" or each is None:
            continue
        if (each.lineno, each.col_offset) == begin:
            return later
    return None


def _is_passed_as_it_is(following: Body, caller: int) -> bool:
    """Whether what has just been taken is an argument of the call at this offset."""
    for one in following:
        if one.opname == "CALL":
            return one.offset == caller
        if not one.opname.startswith(_ARGUMENTS):
            return False
    return False


def _key(arguments: Body) -> str | None:
    """`name` in `tensors.pop(name)`."""
    loads = [one for one in arguments if one.opname != "PRECALL"]
    is_variable = len(loads) == 1 and loads[0].opname.startswith(_VARIABLE)
    return loads[0].argval if is_variable else None
