"""Mutant: labkit has one.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.comm import Group
from labkit.precision import LossScaler


def scaled_step(
    scaler: dict[str, Any],
    gradients: Sequence[torch.Tensor],
    update: Callable[[list[torch.Tensor]], object],
    group: Group,
) -> bool:
    class Nothing:
        def step(self):
            pass

    theirs = LossScaler(scaler["scale"], group=group)
    is_fine = theirs.step(Nothing(), [gradient.float() for gradient in gradients])
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
