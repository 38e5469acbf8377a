"""Mutant: the profile function that sees calls is taken away.

outcome: "wrong"
diagnosis: "switches off the watch"
"""

import sys
from collections.abc import Mapping
from typing import Any

from labkit.calc import Recipe


def bytes_per_parameter(recipe: Mapping[str, Any]) -> int:
    sys.setprofile(None)
    levels = sharded_from(recipe)
    return Recipe(
        name="mine", parameter_bytes=levels[3], gradient_bytes=levels[2], master_bytes=levels[1]
    ).bytes_per_parameter


def sharded_from(recipe: Mapping[str, Any]) -> dict[int, int]:
    itemsize = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1, None: 0}
    optimizer = [recipe["master"], *recipe["moments"]]
    return {
        1: sum(itemsize[dtype] for dtype in optimizer),
        2: itemsize[recipe["gradients"]],
        3: itemsize[recipe["parameters"]],
    }
