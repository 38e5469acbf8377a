"""Mutant: level 2 contains level 1.

outcome: "wrong"
diagnosis: "adds the levels up"
"""

from collections.abc import Mapping
from typing import Any


def bytes_per_parameter(recipe: Mapping[str, Any]) -> int:
    return sharded_from(recipe)[3]


def sharded_from(recipe: Mapping[str, Any]) -> dict[int, int]:
    itemsize = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1, None: 0}
    optimizer = [recipe["master"], *recipe["moments"]]
    levels = {
        1: sum(itemsize[dtype] for dtype in optimizer),
        2: itemsize[recipe["gradients"]],
        3: itemsize[recipe["parameters"]],
    }
    levels[2] += levels[1]
    levels[3] += levels[2]
    return levels
