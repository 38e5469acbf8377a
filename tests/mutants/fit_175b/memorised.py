"""Mutant: the answer to the first task.

outcome: "wrong"
diagnosis: "the same layout for every task"
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any


def layout(task: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest that fits, by the model above."""
    return {
        "tp": 4, "pp": 8, "virtual": 12, "zero": 1, "microbatch": 2, "recompute": "none",
    }  # fmt: skip


def _ranks(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[int, int]:
    """(dp, microbatches of a rank)"""
    dp = task["num_gpus"] // (given["tp"] * given["pp"])
    return dp, task["global_batch"] // (dp * given["microbatch"])


def _own(task: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Parameters on a GPU of the first rank; on the last are about as many."""
    if given["pp"] == 1:
        return task["num_params"] / given["tp"]
    layers = task["layers"] / given["pp"] * task["layer_params"]
    return (layers + task["table_params"]) / given["tp"]


def _states(task: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, float]:
    """By part: first what zero 1 shards, last what zero 3 does."""
    dp, _ = _ranks(task, given)
    own = _own(task, given)
    return {
        name: own * task[f"{of}_bytes"] / (dp if given["zero"] >= level else 1)
        for name, of, level in (
            ("optimizer", "optimizer", 1),
            ("gradients", "gradient", 2),
            ("parameters", "parameter", 3),
        )
    }


def _layer_bytes(task: Mapping[str, Any], given: Mapping[str, Any], recompute: str) -> float:
    """One layer's activations of one microbatch."""
    of_a_token = 2 * task["hidden"]
    if recompute == "none":
        of_a_token = (12 + 4 * task["kv_heads"] / task["heads"]) * task["hidden"]
        of_a_token += 4 * task["heads"] + (6 if task["gated"] else 4) * task["ffn"]
    return given["microbatch"] * task["sequence"] * of_a_token / given["tp"]


def _activations(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[float, float]:
    """(of the first rank, of the last rank), without the head."""
    p, v, (_, m) = given["pp"], given["virtual"], _ranks(task, given)
    kept = task["layers"] / p * _layer_bytes(task, given, given["recompute"])
    first = p + (p - 1) / v if v > 1 else p
    return min(first, m) * kept, min(p - (p - 1) / v, m) * kept


def why_not(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, float]:
    """The largest part of the first rank, and its bytes of parameters and gradients."""
    parts = _states(task, given) | {"activations": _activations(task, given)[0]}
    largest = max(parts, key=parts.__getitem__)
    return largest, parts["parameters"] + parts["gradients"]
