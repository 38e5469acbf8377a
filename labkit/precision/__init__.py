"""Training in 16 bits: fp16 with a loss scale, bf16 with float32 master weights.

                 exponent  fraction    largest     smallest normal    smallest above 0
    float32         8         23       3.4e38         1.2e-38             1.4e-45
    bfloat16        8          7       3.4e38         1.2e-38             9.2e-41
    float16         5         10       65504          6.1e-5              6.0e-8

Float16 reaches down to 6e-8 only, and many gradients are smaller: they underflow to 0. So the loss
is multiplied by a scale S before backward, every gradient is S times as large, and is divided by S
in float32 before it is used. S should be as large as possible, and must not overflow:

    a gradient is inf or nan      skip the step, S = S / 2
    2,000 steps without one       S = 2 S

What looks at the size of gradients, such as clipping, must see them after the division: `unscale`.

Bfloat16 has float32's range and needs no scale, but 7 bits of fraction: w + update is w again where
the update is below half the distance to w's neighbour, w/512 to w/256. So a float32 copy of the
parameters, the master, takes the updates, and the model gets it rounded after each step. Float16,
with 10 bits, needs masters as well.

    loss_scale.py      LossScaler            master_weights.py      MasterWeights

Wire: nothing but a scaler's one number per step, where ranks must agree whether to skip.
Papers: Micikevicius et al., "Mixed precision training", arXiv:1710.03740; Kalamkar et al., "A study
of BFLOAT16 for deep learning training", arXiv:1905.12322.
"""

from labkit.precision.loss_scale import LossScaler, all_finite
from labkit.precision.master_weights import MasterWeights

__all__ = ["LossScaler", "MasterWeights", "all_finite"]
