"""Mutant: cuts between the bytes of a parameter.

outcome: "wrong"
diagnosis: "rounds bytes and not parameters"
"""

from collections.abc import Mapping
from typing import Any


def model_state_bytes(num_params: int, recipe: Mapping[str, Any], zero: int, dp: int) -> int:
    optimizer_bytes = recipe["master_bytes"] + sum(recipe["moment_bytes"])
    sizes = [optimizer_bytes, recipe["gradient_bytes"], recipe["parameter_bytes"]]
    return sum(
        -(-num_params * size // (dp if zero > kind else 1)) for kind, size in enumerate(sizes)
    )
