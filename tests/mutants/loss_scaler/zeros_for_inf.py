"""Mutant: what overflows becomes 0, and the step is made.

outcome: "wrong"
diagnosis: "replaces inf and nan, and makes the step"
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.comm import Group


def scaled_step(
    scaler: dict[str, Any],
    gradients: Sequence[torch.Tensor],
    update: Callable[[list[torch.Tensor]], object],
    group: Group,
) -> bool:
    is_fine = True
    is_fine = bool(group.all_reduce(torch.tensor([float(is_fine)]), op="min"))
    if not is_fine:
        scaler["scale"] /= 2
        scaler["num_good_steps"] = 0
        return False
    update([gradient.float().nan_to_num(0, 0, 0) / scaler["scale"] for gradient in gradients])
    scaler["num_good_steps"] += 1
    if scaler["num_good_steps"] == scaler["growth_interval"]:
        scaler["scale"] *= 2
        scaler["num_good_steps"] = 0
    return True
