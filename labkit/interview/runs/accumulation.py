"""Gradient accumulation, measured: how often it communicates, and what it must be divided by."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from labkit.comm import Group
from labkit.data_parallel import DDP
from labkit.interview.runs.data_parallel import gradients_of
from labkit.interview.runs.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig, loss

Quiet = Callable[[], AbstractContextManager[None]]

_CONFIG = GPTConfig(context=32, hidden=32, num_heads=2)
_BUCKET_BYTES = 60_000  # four of them for it in float64


@real_run
def _accumulated(quiet: str, divided_by: int = 4) -> tuple[int, float]:
    """All-reduces of 4 microbatches in 4 buckets on 2 ranks, and the gradient over the right one.

    quiet: what stands under no_sync: "nothing", "backward", or "both", forward too.
    """
    result = run(_accumulate, 2, args=(quiet, divided_by))
    whole = TrainConfig(num_sequences=16, dtype=torch.float64).batches(None, _CONFIG.context).at(0)
    module = GPT(_CONFIG, dtype=torch.float64)
    loss(module, whole).backward()
    right = torch.cat([gradient.flatten() for gradient in gradients_of(module)])
    count = result.traffic[0].by_operation["all_reduce"].count
    return count, (result.values[0].norm() / right.norm()).item()


def _accumulate(world: Group, quiet: str, divided_by: int) -> torch.Tensor:
    module = GPT(_CONFIG, dtype=torch.float64)
    model = DDP(module, world, bucket_bytes=_BUCKET_BYTES)
    whole = TrainConfig(num_sequences=16, dtype=torch.float64).batches(None, _CONFIG.context).at(0)
    share = whole.share(world.rank, world.size)
    for number in range(4):
        keep_quiet: Quiet = nullcontext if number == 3 else model.no_sync
        with keep_quiet() if quiet == "both" else nullcontext():
            value = loss(model, share.share(number, 4)) / divided_by
        with keep_quiet() if quiet in ("both", "backward") else nullcontext():
            value.backward()
    return torch.cat([gradient.flatten() for gradient in gradients_of(module)])


def num_all_reduces(quiet: str) -> float:
    """All-reduces of 4 microbatches in 4 buckets on 2 ranks.

    quiet: what stands under no_sync: "nothing", "backward", or "both", forward too.
    """
    return _accumulated(quiet)[0]


def share_of_the_right_gradient(times_divided: int) -> float:
    """The gradient over the right one, when the loss is divided by 4 so often."""
    return _accumulated("both", 4**times_divided)[1]
