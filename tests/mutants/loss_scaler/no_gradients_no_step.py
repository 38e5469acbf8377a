"""Mutant: a rank without gradients does not call update.

outcome: "wrong"
diagnosis: "leaves out the step where there are no gradients"
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
    is_fine = all(bool(gradient.isfinite().all()) for gradient in gradients)
    is_fine = bool(group.all_reduce(torch.tensor([float(is_fine)]), op="min"))
    if not is_fine:
        scaler["scale"] /= 2
        scaler["num_good_steps"] = 0
        return False
    if gradients:
        update([gradient.float() / scaler["scale"] for gradient in gradients])
    scaler["num_good_steps"] += 1
    if scaler["num_good_steps"] == scaler["growth_interval"]:
        scaler["scale"] *= 2
        scaler["num_good_steps"] = 0
    return True
