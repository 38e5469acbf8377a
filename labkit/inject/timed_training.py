"""A small training on layers that take a given time, recorded by PyTorch Profiler.

    data | forward | backward, buckets are reduced meanwhile | optimizer | next step

Strategy: DDP with a bucket per layer. A healthy step takes `STEP_S` on each rank; a fault's size is
best given as a share of it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from labkit.comm import Group
from labkit.data_parallel import DDP
from labkit.inject.slow import Fault, faults
from labkit.inject.timed import TimedLayer
from labkit.profile import recording

LAYERS, LAYER_S, WIDTH = 4, 0.006, 64
STEP_S = 3 * LAYERS * LAYER_S


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
