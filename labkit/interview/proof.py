"""The expression that proves a number, and its value.

value("calc.collective('all_reduce', 'ring', 8, 1e9).seconds(5e-6, 1/360e9)")     0.00493

It is Python of one line. Its names are calc, math, runs, ratio (0.3043... as 7 and 23) and a few
built-in functions.
"""

import ast
import math
from fractions import Fraction
from typing import Any

from labkit import calc
from labkit.interview import runs

_DENOMINATOR = 1000  # of a fraction that somebody says


def ratio(share: Any) -> tuple[int, int]:
    """A share as the fraction that a text writes, in lowest terms: (7, 23) for 0.30434..."""
    return Fraction(float(share)).limit_denominator(_DENOMINATOR).as_integer_ratio()


_FUNCTIONS = (abs, float, int, len, max, min, range, ratio, round, sorted, sum)
_NAMES: dict[str, Any] = {"calc": calc, "math": math, "runs": runs}
_NAMES |= {each.__name__: each for each in _FUNCTIONS}


class BadProof(ValueError):
    """A proof that cannot be read, or that fails."""


def value(proof: str) -> Any:
    """What the expression gives. BadProof says how it failed."""
    try:
        return eval(proof.strip(), {**_NAMES, "__builtins__": {}})
    except Exception as error:  # it may call anything in calc and runs
        raise BadProof(f"{proof} fails: {type(error).__name__}: {error}") from error


def uses(proof: str, room: str) -> bool:
    """Whether a proof reads or calls something of "calc" or of "runs"."""
    tree = ast.parse(proof.strip(), mode="eval")
    return any(isinstance(node, ast.Name) and node.id == room for node in ast.walk(tree))


def multiplies(proof: str) -> bool:
    """Whether anything in it is multiplied, divided or raised to a power."""
    products = (ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
    return any(isinstance(node, products) for node in ast.walk(ast.parse(proof.strip())))
