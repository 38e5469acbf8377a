"""Layers that take a given time, and a small training on them, recorded by PyTorch Profiler.

    data | forward | backward, buckets are reduced meanwhile | optimizer | next step

Four ranks that compute do not run at once on two cores, so one would measure the machine. A rank
that waits needs no core. A TimedLayer has real parameters and real gradients, and spends its time
waiting in an operator, `labkit::wait`, which a profiler shows like any operator that computes.

Strategy: DDP with a bucket per layer. A healthy step takes `STEP_S` on each rank; a fault's size is
best given as a share of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from labkit.comm import Group
from labkit.data_parallel import DDP
from labkit.inject.slow import Fault, compute, faults
from labkit.profile import recording

LAYERS, LAYER_S, WIDTH = 4, 0.006, 64
STEP_S = 3 * LAYERS * LAYER_S


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


def timed_training(
    world: Group, folder: str | Path, chosen: tuple[Fault, ...] = (), num_steps: int = 6
) -> None:
    """Train with these faults, and leave folder/rank*.json of all steps but the first."""
    stack = nn.Sequential(*(TimedLayer(WIDTH, LAYER_S) for _ in range(LAYERS)))
    model = DDP(stack, world, bucket_bytes=4 * WIDTH * (WIDTH + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = DataLoader(TensorDataset(torch.ones(4 * num_steps, WIDTH)), batch_size=4)
    with faults(world, *chosen), recording(world, folder) as end_step:
        for (batch,) in batches:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            end_step()
