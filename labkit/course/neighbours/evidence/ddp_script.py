"""Mistakes of a DDP script that no error reports: gradients sent too often, data read twice."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from labkit import Group
from labkit.interview.real_run import real_run, run

_FEATURES = 256


@real_run
def ddp_gradient_bytes(num_microbatches: int, with_no_sync: bool) -> int:
    """Bytes that one rank of two hands to torch's DDP's all-reduces in one optimizer step.

    One 256 x 256 matrix, float32. with_no_sync: all microbatches but the last are under no_sync().
    """
    return sum(run(_ddp_step, 2, (num_microbatches, with_no_sync)).values[0])


def _ddp_step(world: Group, num_microbatches: int, with_no_sync: bool) -> list[int]:
    handed: list[int] = []

    def counted(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        handed.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    model = DDP(nn.Linear(_FEATURES, _FEATURES, bias=False))
    model.register_comm_hook(None, counted)
    for index in range(num_microbatches):
        is_last = index == num_microbatches - 1
        with model.no_sync() if with_no_sync and not is_last else nullcontext():
            (model(torch.ones(2, _FEATURES)).square().mean() / num_microbatches).backward()
    return handed


@real_run
def distinct_samples(world_size: int, sampled: bool) -> int:
    """Distinct samples that all ranks together read in a first step of 4 samples each.

    sampled: through torch's DistributedSampler; else each rank has a DataLoader of its own.
    """
    return len(
        {sample for read in run(_first_step, world_size, (sampled,)).values for sample in read}
    )


def _first_step(world: Group, sampled: bool) -> list[int]:
    data = range(1000)
    sampler = DistributedSampler(data) if sampled else None  # type: ignore[arg-type, var-annotated]
    loader = DataLoader(data, batch_size=4, sampler=sampler)  # type: ignore[arg-type, var-annotated]
    return next(iter(loader)).tolist()


@real_run
def epochs_with_the_first_order(num_epochs: int, with_set_epoch: bool) -> int:
    """Number of epochs with the order of the first epoch, of `num_epochs`, on rank 0 of two."""
    return run(_orders, 2, (num_epochs, with_set_epoch)).values[0]


def _orders(world: Group, num_epochs: int, with_set_epoch: bool) -> int:
    sampler = DistributedSampler(range(1000))  # type: ignore[arg-type, var-annotated]
    first, equal = list(sampler), 0
    for epoch in range(num_epochs):
        if with_set_epoch:
            sampler.set_epoch(epoch)
        equal += list(sampler) == first
    return equal
