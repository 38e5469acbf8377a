"""Train a small GPT on any number of ranks and hosts, and go on after a restart.

    torchrun --nnodes=1 --nproc-per-node=2 --max-restarts=3 --rdzv-id=first \
        --rdzv-backend=c10d --rdzv-endpoint=localhost:29500 \
        -m labkit.launch.payload examples/train.py --out runs/first -- --steps 200

Rank 0 writes a checkpoint. After a restart it reads it, and gives parameters and step to the
others: NaiveDDP broadcasts the parameters anyway, so that no shared folder is needed. The step is
plain SGD, which has no state of its own to save.
"""

import argparse
import os
from pathlib import Path

import torch

import labkit
from labkit.data_parallel import NaiveDDP, train_step
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig


def main(world):
    """What every rank does. Returns the loss over all ranks before each step of this attempt."""
    options = arguments()
    config, settings = GPTConfig(), TrainConfig(optimizer="sgd", learning_rate=0.1)
    module = GPT(config, settings.seed).to(world.device)
    first_step = torch.zeros(1, dtype=torch.int64, device=world.device)
    if world.rank == 0 and labkit.attempt() > 0 and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True, map_location=world.device)
        module.load_state_dict(saved["parameters"])
        first_step.fill_(saved["step"] + 1)
    model = NaiveDDP(module, world)  # from here on all ranks have rank 0's parameters
    first = int(world.broadcast(first_step))

    optimizer = settings.make_optimizer(module.parameters())
    batches = settings.batches(None, config.context)
    losses = []
    for step in range(first, options.steps):
        part = train_step(model, optimizer, batches.at(step))
        losses.append(float(world.all_reduce(torch.tensor(part, device=world.device))))
        if step % options.every == 0 and world.rank == 0:
            print(f"attempt {labkit.attempt()}, step {step}: loss {losses[-1]:.3f}")
            save(options.checkpoint, module, step)
    return {"first_step": first, "losses": losses}


def arguments():
    """What stands behind `--` on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    return parser.parse_args()


def save(path, module, step):
    """Write the checkpoint beside the old one and rename it: a kill leaves one or the other."""
    half = path.with_suffix(".part")
    torch.save({"parameters": module.state_dict(), "step": step}, half)
    os.replace(half, path)
