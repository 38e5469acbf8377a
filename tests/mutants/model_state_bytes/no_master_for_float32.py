"""Mutant: parameters in float32 are taken for their own master copy.

outcome: "wrong"
diagnosis: "forgets the master copy of parameters in float32"
"""

from collections.abc import Mapping
from typing import Any


def model_state_bytes(num_params: int, recipe: Mapping[str, Any], zero: int, dp: int) -> int:
    shard = -(-num_params // dp)
    master_bytes = recipe["master_bytes"] if recipe["parameter_bytes"] < 4 else 0
    optimizer_bytes = master_bytes + sum(recipe["moment_bytes"])
    num_parameters = shard if zero >= 3 else num_params
    num_gradients = shard if zero >= 2 else num_params
    num_states = shard if zero >= 1 else num_params
    return (
        num_parameters * recipe["parameter_bytes"]
        + num_gradients * recipe["gradient_bytes"]
        + num_states * optimizer_bytes
    )
