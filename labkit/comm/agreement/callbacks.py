"""Elements that a built-in function hands over one by one, with no loop in the program's code.

    list(map(world.all_reduce, tensors))             the call's own tensor is the element
    for _ in map(sync, tensors): ...                 what sync gets is
    results.extend(map(lambda t: sync(t), tensors))

Told by where the caller stands: at its call of `list`, say, while a function of the program runs.
So `list` goes through something that calls that function.
"""

from __future__ import annotations

import re
from inspect import CO_GENERATOR
from types import CodeType

from labkit.comm.agreement.call_text import call_text
from labkit.comm.agreement.loops import Loop, handed_to, instructions, number_of
from labkit.comm.callers import is_foreign

_CONSUMERS = frozenset("list tuple set frozenset sum any all next deque dict extend".split())
_CALLED = re.compile(r"(?:[\w.]*\.)?(\w+)\(")
# for _ in map(...), [*map(...)], {*map(...)}, a, b = map(...)
_GOES_ON = frozenset({"FOR_ITER", "LIST_EXTEND", "SET_UPDATE", "UNPACK_SEQUENCE", "UNPACK_EX"})


def callback_in(
    depth: int, code: CodeType, instruction: int, callee: CodeType | None
) -> Loop | None:
    """What a frame that stands at `instruction` (its f_lasti) hands over through a built-in.

    callee: the code that it has come to; None where that is the group's own method. None where the
    frame has called that itself.
    """
    name = ""
    if callee is not None:
        name, is_generator = callee.co_name, bool(callee.co_flags & CO_GENERATOR)
        if is_generator or is_foreign(callee.co_filename):
            return None
    return handed_to(depth, callee) if _goes(code, instruction, name) else None


def _goes(code: CodeType, instruction: int, callee: str) -> bool:
    """Whether a built-in goes through something at this instruction, and not a callee so named."""
    body = instructions(code)
    if body[number_of(body, instruction)].opname in _GOES_ON:
        return True
    called = _CALLED.match(call_text(code, instruction))
    return called is not None and called[1] in _CONSUMERS - {callee}
