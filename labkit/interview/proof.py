"""The expression that proves a number: what it may contain, and its value.

value("calc.collective('all_reduce', 'ring', 8, 1e9).seconds(5e-6, 1/360e9)")     0.00493

It is Python, of which only names, numbers, arithmetic, comparisons, calls, tuples and
comprehensions are left. The names are calc, math, runs, ratio (0.3043... as 7 and 23) and a few
harmless built-in functions.
"""

import ast
import math
from fractions import Fraction
from typing import Any

from labkit import calc
from labkit.interview import perturbed, restating, runs

_DENOMINATOR = 1000  # of a fraction that somebody says


def ratio(share: Any) -> tuple[int, int]:
    """A share as the fraction that a text writes, in lowest terms: (7, 23) for 0.30434..."""
    return Fraction(float(share)).limit_denominator(_DENOMINATOR).as_integer_ratio()


_FUNCTIONS = (abs, float, int, len, max, min, range, ratio, round, sorted, sum)
_NAMES: dict[str, Any] = {"calc": calc, "math": math, "runs": runs}
_NAMES |= {each.__name__: each for each in _FUNCTIONS}
# Figures of data sheets and papers, with their sources: to read one is a proof.
_TABLES = {"GPUS", "CLUSTERS", "MODELS", "RECIPES"}
# They only read what they are given.
_READERS = {"amount", "Result", "units"}
_ALLOWED = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Store, ast.Attribute, ast.Call,
    ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict,
    ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.IfExp, ast.Starred,
)  # fmt: skip


class BadProof(ValueError):
    """A proof that is none: it cannot be read, is not allowed, or proves nothing."""


def value(proof: str) -> Any:
    """What the expression gives. BadProof says why it may not be evaluated, or how it failed."""
    tree = check(proof)
    names = {**_NAMES, "__builtins__": {}}

    def evaluate(node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), "<proof>", "eval"), names)

    try:
        found, brought_back = restating.value_of(tree.body, evaluate)
    except Exception as error:  # it may call anything in calc and runs
        raise BadProof(f"{proof} fails: {type(error).__name__}: {error}") from error
    if brought_back:
        raise BadProof(
            f"{brought_back[0]!r} gives a number which is written in it: whatever stood there, it "
            "would give that. Calculate it from what the question has, min(m for m in range(1, "
            "999) if ...)"
        )
    if perturbed.stays(proof, found, evaluate):
        raise BadProof(
            f"{proof!r} gives {found!r:.40} whatever its calls give: the number is made of those "
            "beside them. Calculate it from what the formula gives"
        )
    return found


def check(proof: str) -> ast.Expression:
    """The expression, if it is a proof. BadProof for what is not allowed, or calls no formula."""
    try:
        tree = ast.parse(proof.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise BadProof(f"{proof!r} is no expression: {error}") from None
    bound = {
        node.id for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }  # fmt: skip
    for node in ast.walk(tree):
        _check_node(node, bound, proof)
    for part in restating.parts(tree.body):
        if not (uses(part, "calc") or uses(part, "runs")):
            raise BadProof(
                f"{ast.unparse(part)!r} calls neither calc nor runs, so it proves nothing; "
                "call the formula or the run that gives the number"
            )
    return tree


def uses(tree: ast.AST | str, room: str) -> bool:
    """Whether a proof calls something of "calc" or of "runs", or reads one of calc's tables."""
    if isinstance(tree, str):
        tree = ast.parse(tree.strip(), mode="eval")
    for node in ast.walk(tree):
        first = _first_attribute(node, room)
        if room == "calc" and isinstance(node, ast.Attribute) and first in _TABLES:
            return True
        called = _first_attribute(node.func, room) if isinstance(node, ast.Call) else ""
        if called and called not in _READERS and not called.endswith("_text"):
            return True
    return False


def multiplies(proof: str) -> bool:
    """Whether anything in it is multiplied, divided or raised to a power."""
    products = (ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
    return any(isinstance(node, products) for node in ast.walk(ast.parse(proof.strip())))


def _first_attribute(node: ast.AST, room: str) -> str:
    """ "b" for <room>.b.c and <room>.b; "" for what begins with something else."""
    while isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name):
            return node.attr if node.value.id == room else ""
        node = node.value
    return ""


def _check_node(node: ast.AST, bound: set[str], proof: str) -> None:
    if not isinstance(node, _ALLOWED):
        raise BadProof(f"{proof!r} has a {type(node).__name__}, which a proof may not; calculate")
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        raise BadProof(f"{proof!r} reads .{node.attr}; what begins with _ is not for proofs")
    if isinstance(node, ast.Name) and node.id not in _NAMES and node.id not in bound:
        raise BadProof(f"{proof!r} has the name {node.id!r}; the names are {', '.join(_NAMES)}")
