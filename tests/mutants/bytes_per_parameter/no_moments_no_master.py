"""Mutant: an optimizer without moments is taken for one that keeps nothing.

outcome: "wrong"
diagnosis: "forgets the master copy where there are no moments"
"""

from collections.abc import Mapping
from typing import Any


def bytes_per_parameter(recipe: Mapping[str, Any]) -> int:
    return sum(sharded_from(recipe).values())


def sharded_from(recipe: Mapping[str, Any]) -> dict[int, int]:
    itemsize = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1, None: 0}
    optimizer = [recipe["master"], *recipe["moments"]] if recipe["moments"] else []
    return {
        1: sum(itemsize[dtype] for dtype in optimizer),
        2: itemsize[recipe["gradients"]],
        3: itemsize[recipe["parameters"]],
    }
