"""Mutant: one level is like another.

outcome: "wrong"
diagnosis: "shards everything from level 1 on"
"""

from collections.abc import Mapping
from typing import Any


def which_stage_fits(setup: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    num_params, shard = setup["num_params"], -(-setup["num_params"] // setup["dp"])
    largest: list[str] = []
    for level in range(4):
        terms = {
            "optimizer": (shard if level >= 1 else num_params) * setup["optimizer_bytes"],
            "gradients": (shard if level >= 1 else num_params) * setup["gradient_bytes"],
            "parameters": (shard if level >= 1 else num_params) * setup["parameter_bytes"],
            "activations": setup["activation_bytes"],
            "reserve": setup["reserve_gb"] * 1e9,
        }
        if sum(terms.values()) <= setup["memory_gib"] * 2**30:
            return level, largest
        largest.append(max(terms, key=terms.__getitem__))
    return None, largest
