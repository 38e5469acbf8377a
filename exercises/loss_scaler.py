"""A dynamic loss scale for float16.

An interviewer asks: "In float16 everything below 6e-8 is zero, and so are many gradients. So the
loss is multiplied by a scale before backward. How large should it be, who finds that out, and what
happens when it was too large? What if only one of your ranks sees that? Write the step."

A training loop on every rank, each with a part of the gradients of its own (ZeRO):

    scaler = {"scale": 65536.0, "num_good_steps": 0, "growth_interval": 2000}
    for batch in batches:
        (loss(batch) * scaler["scale"]).backward()
        scaled_step(scaler, gradients, update, group)

Write `scaled_step(scaler, gradients, update, group)`.

    scaler     a dict as above, equal on all ranks. You write the next step's "scale" and
               "num_good_steps" into it
    gradients  a list of float16 tensors, scaled: this rank's own, and on some ranks there may be
               none. They may be overwritten
    update     update(gradients) makes the optimizer's step with a list of float32 tensors, in the
               same order and shapes: what the gradients would be without a scale. Call it once, on
               every rank, or on no rank
    group      `group.rank`, `group.size`, and `group.all_reduce(tensor, op)`, op "sum", "max" or
               "min", which returns the result
    returns    True where the step was made, False where it was skipped

The rules
    overflow   a gradient on any rank has an inf or a nan: all ranks skip the step, the scale is
               halved, and the count of good steps begins at 0 again
    otherwise  the step is made, and counts. After growth_interval good steps in a row the scale
               doubles, and the count begins at 0 again
    division   by the scale that backward was made with, in float32: a quotient in float16 would
               lose what the scale has saved

Budget of a step, on every rank
    collectives  one all-reduce, of at most 8 bytes

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
    """Make the step with unscaled gradients, or skip it on all ranks; then the next scale."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
