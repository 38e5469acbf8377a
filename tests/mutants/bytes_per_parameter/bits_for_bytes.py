"""Mutant: float32 is 32.

outcome: "wrong"
diagnosis: "gives bits for bytes"
"""

from collections.abc import Mapping
from typing import Any


def bytes_per_parameter(recipe: Mapping[str, Any]) -> int:
    return sum(sharded_from(recipe).values())


def sharded_from(recipe: Mapping[str, Any]) -> dict[int, int]:
    itemsize = {
        "float32": 32,
        "bfloat16": 16,
        "float16": 16,
        "float8_e4m3fn": 8,
        "int8": 8,
        None: 0,
    }
    optimizer = [recipe["master"], *recipe["moments"]]
    return {
        1: sum(itemsize[dtype] for dtype in optimizer),
        2: itemsize[recipe["gradients"]],
        3: itemsize[recipe["parameters"]],
    }
