"""Mutant: 65504 is taken for an overflow.

outcome: "wrong"
diagnosis: "takes the largest number for an overflow"
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
    is_fine = all(bool((gradient.abs() < 65504).all()) for gradient in gradients)
    is_fine = bool(group.all_reduce(torch.tensor([float(is_fine)]), op="min"))
    if not is_fine:
        scaler["scale"] /= 2
        scaler["num_good_steps"] = 0
        return False
    update([gradient.float() / scaler["scale"] for gradient in gradients])
    scaler["num_good_steps"] += 1
    if scaler["num_good_steps"] == scaler["growth_interval"]:
        scaler["scale"] *= 2
        scaler["num_good_steps"] = 0
    return True
