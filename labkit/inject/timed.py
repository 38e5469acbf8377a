"""A layer that takes a given time, as on a device of its own.

Four ranks that compute do not run at once on two cores, so one would measure the machine. A rank
that waits needs no core. The layer has real parameters and real gradients. It spends its time
waiting in an operator, `labkit::wait`, which a profiler shows like any operator that computes.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

_library = torch.library.Library("labkit", "DEF")
_library.define("wait(float seconds) -> ()")
_library.impl("wait", time.sleep, "CompositeExplicitAutograd")


def compute(seconds: float) -> None:
    """Wait in an operator: to a profiler it looks like computing."""
    torch.ops.labkit.wait(seconds)


class TimedLayer(nn.Linear):
    """A linear layer (B, width) -> (B, width): `seconds` of forward, twice that of backward."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__(width, width)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, after its time."""
        y: Tensor = _Takes.apply(super().forward(x), self.seconds)
        return y


class _Takes(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, y: Tensor, seconds: float) -> Tensor:
        context.seconds = seconds
        compute(seconds)
        return y.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        compute(2 * context.seconds)
        return gradients[0], None
