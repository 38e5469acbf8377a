"""A dynamic loss scale for float16.

An interviewer asks: "In float16, numbers below 6e-8 are zero, and many gradients are smaller. So
the loss is multiplied by a scale before backward. How large should the scale be? How do you find
it, and what do you do when it was too large? What if only one rank notices that? Write the step."

Each rank runs this training loop, and has some of the gradients (as with ZeRO):

    scaler = {"scale": 65536.0, "num_good_steps": 0, "growth_interval": 2000}
    for batch in batches:
        (loss(batch) * scaler["scale"]).backward()
        scaled_step(scaler, gradients, update, group)

Write `scaled_step(scaler, gradients, update, group)`.

    scaler     a dict as above, equal on all ranks. Write the next step's "scale" and
               "num_good_steps" into it
    gradients  this rank's own gradients: a list of float16 tensors, computed with
               scaler["scale"]. On some ranks the list may be empty. You may overwrite them
    update     update(gradients) makes the optimizer's step. It takes a list of float32 tensors, the
               gradients without the scale, in the same order and shapes. Call it once on every
               rank, also with an empty list, or on no rank
    group      `group.rank`, `group.size`, and `group.all_reduce(tensor, op)`, which returns the
               result. op is "sum", "max" or "min"
    returns    True if the step was made, False if it was skipped

The rules
    overflow   If a gradient on any rank has an inf or a nan, all ranks skip the step. The scale is
               halved, without a lower limit, and num_good_steps becomes 0
    otherwise  The step is made, and num_good_steps grows by 1. When it reaches growth_interval, the
               scale doubles and num_good_steps becomes 0
    division   by the scale that backward was made with, in float32: in float16 the quotient of a
               small gradient would be 0 again

Budget of a step, on every rank
    collectives  one all-reduce, of at most 8 bytes

Not allowed: labkit.precision
Paper: Micikevicius et al., "Mixed precision training", arXiv:1710.03740, section 3.2.
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
    """Make the step with unscaled gradients, or skip it on all ranks, and set the next scale."""
    ### BEGIN SOLUTION
    is_fine = all(bool(gradient.isfinite().all()) for gradient in gradients)
    # All ranks must decide the same: otherwise their parameters and scales differ from now on.
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
    ### END SOLUTION
