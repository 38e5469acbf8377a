"""Train a small GPT on any number of ranks and hosts, and go on after a restart.

    torchrun --nnodes=1 --nproc-per-node=2 --max-restarts=3 --rdzv-id=first \
        --rdzv-backend=c10d --rdzv-endpoint=localhost:29500 \
        -m labkit.launch.payload examples/train.py --out runs/first -- --steps 200

It goes on from the newest checkpoint, on another number of ranks too. Hosts may share the folder or
have one each. When the end of the job is announced (SIGTERM, or Slurm's signal), it saves and asks
Slurm to start it again.
"""

import argparse
from pathlib import Path

import torch

import labkit
from labkit import arguments
from labkit.checkpoint import Checkpointer, PreemptionNotice
from labkit.data_parallel import DDP, train_step
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig


def main(world):
    """Train on every rank. Returns the loss over all ranks before each step of this attempt."""
    options = command_line().parse_args()
    config, settings = GPTConfig(), TrainConfig()
    module = GPT(config, settings.seed).to(world.device)
    model = DDP(module, world)
    optimizer = settings.make_optimizer(module.parameters())
    # With its sizes, a checkpoint can be served: labkit serve checkpoints
    extra = {"config": config}
    checkpointer = Checkpointer(options.checkpoints, model, optimizer, world, extra=extra)
    loaded = checkpointer.load()
    first = loaded.step if loaded else 0
    batches = settings.batches(None, config.context)
    losses = []
    with PreemptionNotice(world) as notice:
        for step in range(first, options.steps):
            part = train_step(model, optimizer, batches.at(step))
            losses.append(float(world.all_reduce(torch.tensor(part, device=world.device))))
            is_end = notice.received()
            if (step + 1) % options.every == 0 or is_end:
                checkpointer.save(step + 1, wait=is_end)
                if world.rank == 0:
                    print(f"attempt {labkit.attempt()}, step {step + 1}: loss {losses[-1]:.3f}")
            if is_end:
                notice.requeue()
                break
    checkpointer.wait()
    return {"first_step": first, "losses": losses}


def command_line():
    """The parser of what stands behind `--` on the command line."""
    parser = argparse.ArgumentParser(
        usage="torchrun ... -m labkit.launch.payload examples/train.py --out FOLDER -- [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=arguments.count, default=100, help="in all; 100")
    parser.add_argument(
        "--every", type=arguments.count, default=10, help="steps from checkpoint to checkpoint; 10"
    )
    parser.add_argument(
        "--checkpoints", type=Path, default=Path("checkpoints"), help="their folder; checkpoints"
    )
    return parser


if __name__ == "__main__":
    command_line().parse_args()
    command_line().error("this file is a payload, which torchrun starts on each rank; see --help")
