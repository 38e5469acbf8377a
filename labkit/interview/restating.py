"""A proof that proves nothing although it calculates: its number was put in.

    (runs.combining.partners(5), 4)            the 4 is only written down
    7 / calc.bubble_fraction(8, 133) - 7       133 comes out because 133 went in
    round(max(133, calc.collective("all_reduce", "ring", 4).steps))

A formula or a run may well return one of its arguments, and so may a ratio to a call without it:
that is the formula's word. What is looked at is the arithmetic around the calls, in each number of
a tuple or a list.
"""

import ast
import math
from collections.abc import Callable, Iterator
from typing import Any

_FEW = 9  # a small number is in a proof by chance
_ROOMS = ("calc", "runs")
_READERS = {"abs", "float", "int", "ratio", "round", "sorted"}  # the number as it is, nearly
_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.BoolOp)


def parts(node: ast.expr) -> Iterator[ast.expr]:
    """What gives the numbers of a proof, one by one: the entries of a tuple or a list."""
    if isinstance(node, ast.Tuple | ast.List):
        for each in node.elts:
            yield from parts(each.value if isinstance(each, ast.Starred) else each)
    else:
        yield node


def value_of(node: ast.expr, evaluate: Callable[[ast.expr], Any]) -> tuple[Any, list[str]]:
    """What a proof gives, made of its parts; and those parts that only bring a number back."""
    if not isinstance(node, ast.Tuple | ast.List):
        found = evaluate(node)
        return found, [ast.unparse(node)] if restates(node, found) else []
    values: list[Any] = []
    faults: list[str] = []
    for each in node.elts:
        is_starred = isinstance(each, ast.Starred)
        found, wrong = value_of(each.value if isinstance(each, ast.Starred) else each, evaluate)
        values += found if is_starred else [found]
        faults += wrong
    return tuple(values), faults


def restates(node: ast.expr, found: Any) -> bool:
    """Whether arithmetic brings back a number that was put in, in `found` or an entry of it."""
    if not is_arithmetic(node):
        return False
    calls = list(_outermost_calls(node))
    inside = {id(each) for call in calls for each in ast.walk(call)}
    # Literals beside the calls: added, compared with, or what a loop goes through.
    beside = [each for each in ast.walk(node) if id(each) not in inside]
    for number in _large_numbers(found):
        went_in = [_holds(call, number) for call in calls]
        if (went_in and all(went_in)) or any(_is(each, number) for each in beside):
            return True
    return False


def _core(node: ast.expr) -> ast.expr:
    """What is calculated: the f(m) of [round(f(m)) for m in ...][0]."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.ListComp):
            node = node.elt
        elif isinstance(node, ast.Call) and _root(node.func) in _READERS and node.args:
            node = node.args[0]
        else:
            return node


def _is_arithmetic(node: ast.expr) -> bool:
    """Also max(...), sum(...): what is no formula is called by its plain name."""
    is_plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_plain or isinstance(node, _ARITHMETIC)


def is_arithmetic(node: ast.expr) -> bool:
    """Whether something is calculated around the calls, where the number could be put in."""
    return _is_arithmetic(_core(node))


def begins_with(node: ast.AST, room: str) -> bool:
    """Whether this is room.f(...), room.TABLE[...] or what is read of one."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == room


def _outermost_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls of calc and runs that stand in no other."""
    if isinstance(node, ast.Call) and any(begins_with(node, room) for room in _ROOMS):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _outermost_calls(child)


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _large_numbers(found: Any) -> Iterator[float]:
    for each in found if isinstance(found, tuple | list) else [found]:
        if not isinstance(each, str):
            try:
                number = float(each)
            except (TypeError, ValueError):
                continue
            if abs(number) > _FEW:
                yield number


def _holds(node: ast.AST, number: float) -> bool:
    """Whether the number is written somewhere in it."""
    return any(_is(each, number) for each in ast.walk(node))


def _is(node: ast.AST, number: float) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and math.isclose(node.value, abs(number), rel_tol=1e-9)
    )
