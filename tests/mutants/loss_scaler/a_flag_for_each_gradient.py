"""Mutant: a flag for each gradient.

outcome: "over budget"
diagnosis: "sends more than a flag"
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
    flags = torch.zeros(16)
    for index, gradient in enumerate(gradients):
        flags[index] = float(not gradient.isfinite().all())
    is_fine = not group.all_reduce(flags, op="max").any()
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
