"""A proof whose number does not come from its calls: it stays when they give something else.

stays("calc.collective('all_reduce', 'ring', 4).steps * 0 + 36 + 1", 37, evaluate)     True

Every outermost call of calc is scaled, each by another factor, and the proof is evaluated again.
Only arithmetic is looked at, and only without real runs: these would be measured, and a comparison
may well give the same.
"""

import ast
from collections.abc import Callable
from typing import Any

from labkit.interview import restating

_FACTORS = (0.5, 1.37, 3.0, -1.0)


def stays(proof: str, found: Any, evaluate: Callable[[ast.expr], Any]) -> bool:
    """Whether `proof` gives the number `found` whatever its calls give."""
    tree = ast.parse(proof.strip(), mode="eval").body
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if "runs" in names or not restating.is_arithmetic(tree) or isinstance(found, str):
        return False
    return all(_is_same(tree, factor, found, evaluate) for factor in _FACTORS)


def _is_same(
    tree: ast.expr, factor: float, found: Any, evaluate: Callable[[ast.expr], Any]
) -> bool:
    scaled = ast.fix_missing_locations(_Scaled(factor).visit(ast.parse(ast.unparse(tree)).body[0]))
    try:
        return bool(evaluate(scaled.value) == found)
    except Exception:  # what was scaled fits nowhere: then it was used
        return False


class _Scaled(ast.NodeTransformer):
    """calc.f(x).attribute becomes calc.f(x).attribute * factor."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call | ast.Attribute | ast.Subscript) and restating.begins_with(
            node, "calc"
        ):
            self._factor *= 1.19  # each call by another one: a ratio of two would stay
            return ast.BinOp(node, ast.Mult(), ast.Constant(self._factor))
        return self.generic_visit(node)
