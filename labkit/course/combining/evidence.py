"""Three axes at once on real ranks: the groups of each rank, and the bytes of each axis.

And a fleet of two kinds of GPU, from the planner."""

from functools import cache

import torch

from labkit import Group, Run, calc
from labkit.combined import CombinedTraining, sent_by_axis
from labkit.interview.real_run import real_run, run
from labkit.mesh import Mesh
from labkit.model import GPTConfig
from labkit.train import TrainConfig

_SIZES = {"dp": 2, "pp": 2, "tp": 2}
_CONFIG = GPTConfig(context=16, num_layers=4, hidden=32, num_heads=4, ffn=64)
_TIMEOUT_S = 600  # eight ranks on a busy machine with two cores are slow to import
_SETTINGS = TrainConfig(num_steps=1, num_sequences=8, dtype=torch.float64)


@real_run
def partners(rank: int) -> tuple[int, int]:
    """With how many of how many others a rank of dp 2 x pp 2 x tp 2 shares a group; on 8 ranks."""
    return run(_partners, 8, timeout=_TIMEOUT_S).values[rank]


def _partners(world: Group) -> tuple[int, int]:
    mesh = Mesh(world, **_SIZES)
    shared = {rank for axis in _SIZES for rank in getattr(mesh, axis).ranks}
    return len(shared - {world.rank}), world.size - 1


@real_run
def sent_bytes(axis: str, rank: int = 0) -> int:
    """Bytes that a rank sends over an axis in a step of a small GPT: dp 2 x pp 2 x tp 2, float64.

    4 layers, 32 hidden features, 8 sequences of 16 tokens in 4 microbatches of each replica.
    """
    return sent_by_axis(_step().timeline[rank].within("a step"), rank, _SIZES)[axis]


@real_run
def _step() -> Run:
    return run(_one_step, 8, timeout=_TIMEOUT_S)


def _one_step(world: Group) -> None:
    training = CombinedTraining(Mesh(world, **_SIZES), _CONFIG, _SETTINGS, num_microbatches=4)
    batch = _SETTINGS.batches(None, _CONFIG.context).at(0)
    training.step(batch)  # the pipeline's first step also says what shapes will come
    with world.region("a step"):
        training.step(batch)


def fleet(way: str) -> calc.plan.FleetStep:
    """Return a step of Llama 3 8B, 64 sequences, on 8 H100 and 8 A100 of 80 GB.

    way: "equal shares", "shares by speed", "h100 alone" or "a100-80g alone".
    """
    return next(each for each in _fleet() if each.way == way)


@cache
def _fleet() -> list[calc.plan.FleetStep]:
    job = calc.plan.Job("llama3-8b", "megatron_bf16", calc.cluster("h100", 8), 64)
    layout = calc.Layout.parse("dp=16 zero=2")
    return calc.plan.mixed_fleet(job, [calc.cluster("a100", 8)], layout)
