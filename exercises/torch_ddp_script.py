"""Write a training script with torch's DDP, from init to a clean end.

An interviewer asks: "Write the script that you would start with torchrun on eight GPUs: data,
model, accumulation, logging, checkpoints. What is each line for, and what fails without it?"

Write `main(epochs, folder)`. It runs on every rank, also as a file:

    torchrun --nproc-per-node 2 exercises/torch_ddp_script.py 3 /tmp/run

Contract
    start         torchrun has set the environment. Join the process group: nccl where there are
                  GPUs, else gloo. With GPUs a rank uses the one of its LOCAL_RANK
    model         make_model() after torch.manual_seed(SEED). Afterwards each rank draws other
                  dropout masks
    data          Samples(). In an epoch the ranks share the samples, each used once, and the order
                  differs by epoch: that of torch's DistributedSampler with seed=SEED
    step          ACCUMULATE microbatches of BATCH samples on each rank; loss_of(model, batch) is
                  their mean loss. The gradient is that of the mean over all samples of the step, on
                  all ranks. It is clipped to MAX_NORM. make_optimizer(parameters) steps
    traffic       gradients are sent once per step, not once per microbatch
    losses.json   in `folder`, by rank 0, at the end: a list with a number for each epoch of this
                  run, the mean loss over all ranks and microbatches
    checkpoint.pt in `folder`, by rank 0 only, after each epoch: {"epoch": finished epochs,
                  "model": state_dict of make_model()'s module, "optimizer": its state_dict}.
                  Another process may read it at any time, and must find it whole
    resume        if there is a checkpoint, go on after its last epoch, as if nothing had happened
    end           leave the process group

Every epoch has a whole number of steps on every rank. It is checked with two ranks on the CPU.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEED, BATCH, ACCUMULATE, MAX_NORM = 7, 2, 2, 3.3


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """16 samples (x_D, y_1), float32, D = 6."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(SEED)
        self.x_ND = torch.randn(16, 6, generator=draw)
        self.y_N1 = self.x_ND.prod(1, keepdim=True) + self.x_ND.sum(1, keepdim=True)

    def __len__(self) -> int:
        return len(self.x_ND)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x_ND[index], self.y_N1[index]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x_BD, y_B1 = batch
    return nn.functional.mse_loss(model(x_BD), y_B1)


def main(epochs: int, folder: str) -> None:
    """Train `epochs` epochs in all, from the checkpoint in `folder` if there is one."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
