"""A training script with torch's DDP, whole: what an interviewer wants to see.

    torchrun --nproc-per-node 2 examples/frameworks/ddp.py --out /tmp/ddp

Under Slurm, one torchrun on each host (examples/slurm.sbatch has a job around it):

    srun --ntasks-per-node 1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
        --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head_host:29500" \
        --max-restarts 3 examples/frameworks/ddp.py --out /shared/ddp

Layout: every rank has all parameters, and 1/n of each epoch's samples.
Wire: one all-reduce of the gradients per step, in buckets, while backward runs.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704.
"""

import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from job import SEQUENCES_PER_STEP, Job, Record, Windows
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

SEED, MAX_NORM = 0, 10.0


def main() -> None:
    """Train on this rank."""
    job = Job.from_command_line()
    # torchrun says which rank this is. The local rank chooses the GPU, the rank the data.
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)  # before NCCL starts: else all ranks use GPU 0
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=job.timeout)
    rank, size = dist.get_rank(), dist.get_world_size()

    model = job.model().to(device)  # the same weights: DDP also broadcasts those of rank 0
    torch.manual_seed(SEED + rank)  # different dropout masks, hence after the model
    optimizer = job.optimizer(model.parameters())
    checkpoint = Path(job.out, "checkpoint.pt")
    first_epoch = load(checkpoint, model, optimizer, device)
    model = DDP(model, device_ids=[local_rank] if on_gpu else None)

    data = Windows()
    sampler = DistributedSampler(data, seed=SEED, drop_last=True)
    microbatch = SEQUENCES_PER_STEP // size // job.accumulate
    loader = DataLoader(data, microbatch, sampler=sampler, drop_last=True, pin_memory=on_gpu)

    record = Record(job, rank)
    for epoch in range(first_epoch, job.epochs):
        sampler.set_epoch(epoch)  # else every epoch has the order of epoch 0
        total = torch.zeros((), device=device)
        for index, (inputs_BT, targets_BT) in enumerate(loader, start=1):
            inputs_BT = inputs_BT.to(device, non_blocking=True)
            targets_BT = targets_BT.to(device, non_blocking=True)
            is_last = index % job.accumulate == 0
            # Only the last backward of a step sends: the buckets then hold the sum.
            with nullcontext() if is_last else model.no_sync():
                # Mixed precision on GPUs: with torch.autocast("cuda", torch.bfloat16) around these
                # two lines, and no GradScaler. float16 needs one, with unscale_ before clipping.
                logits_BTV = model(inputs_BT)
                loss = job.loss(logits_BTV, targets_BT) / job.accumulate
                loss.backward()
            total += loss.detach()
            if is_last:
                # After the all-reduce, gradients and their norm are the same on every rank.
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
                dist.all_reduce(total)  # the loss over all ranks; not each step in a long job
                record.step(total / size)
                total.zero_()
        if rank == 0:
            save(checkpoint, epoch + 1, model.module, optimizer)
        dist.barrier()  # no rank goes on, or ends, before the checkpoint is there
    record.save()
    dist.destroy_process_group()


def save(path: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint under another name, then rename it: a crash leaves the old one whole."""
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def load(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Load a checkpoint, and return the epoch to go on with; 0 without one. On every rank."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device, weights_only=True)  # else all load to GPU 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


if __name__ == "__main__":
    main()
