"""Mutant: each shard is shared again.

outcome: "wrong"
diagnosis: "divides by the ranks twice"
"""

from collections.abc import Mapping
from typing import Any


def model_state_bytes(num_params: int, recipe: Mapping[str, Any], zero: int, dp: int) -> int:
    shard = -(-num_params // dp)
    optimizer_bytes = recipe["master_bytes"] + sum(recipe["moment_bytes"])
    num_parameters = shard if zero >= 3 else num_params
    num_gradients = shard if zero >= 2 else num_params
    num_states = shard if zero >= 1 else num_params
    return (
        -(-num_parameters // (dp if zero >= 3 else 1)) * recipe["parameter_bytes"]
        + -(-num_gradients // (dp if zero >= 2 else 1)) * recipe["gradient_bytes"]
        + -(-num_states // (dp if zero >= 1 else 1)) * optimizer_bytes
    )
