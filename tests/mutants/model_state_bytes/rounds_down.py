"""Mutant: the smallest shard.

outcome: "wrong"
diagnosis: "forgets to round the shard up"
"""

from collections.abc import Mapping
from typing import Any


def model_state_bytes(num_params: int, recipe: Mapping[str, Any], zero: int, dp: int) -> int:
    shard = num_params // dp
    optimizer_bytes = recipe["master_bytes"] + sum(recipe["moment_bytes"])
    num_parameters = shard if zero >= 3 else num_params
    num_gradients = shard if zero >= 2 else num_params
    num_states = shard if zero >= 1 else num_params
    return (
        num_parameters * recipe["parameter_bytes"]
        + num_gradients * recipe["gradient_bytes"]
        + num_states * optimizer_bytes
    )
