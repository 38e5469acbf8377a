"""Mutant: the recipe's own list gets the master, once more in each call.

outcome: "wrong"
diagnosis: "changes what it is given"
"""

from collections.abc import Mapping
from typing import Any


def bytes_per_parameter(recipe: Mapping[str, Any]) -> int:
    return sum(sharded_from(recipe).values())


def sharded_from(recipe: Mapping[str, Any]) -> dict[int, int]:
    itemsize = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1, None: 0}
    optimizer = recipe["moments"]
    optimizer.append(recipe["master"])
    return {
        1: sum(itemsize[dtype] for dtype in optimizer),
        2: itemsize[recipe["gradients"]],
        3: itemsize[recipe["parameters"]],
    }
