"""The norm of gradients that ranks hold alone, or the same as others, and clipping by it."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import RankError, run
from labkit.data_parallel import DDP
from labkit.global_norm import clip, global_norm
from labkit.memory import Meter
from labkit.pipeline import Pipeline, one_f_one_b, plan
from labkit.tensor_parallel import ColumnLinear, RowLinear

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.complex128]


def held_by(world, dtype):
    """Gradients of rank 0, 1, ...: one of its own, and one that all ranks have."""
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(world.size, 5, generator=generator, dtype=torch.float64)
    common = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    if dtype.is_complex:
        own, common = (torch.complex(x, x.flip(0) - 1) for x in (own, common))
    return own.to(dtype), common.to(dtype)


def clipped(world, dtype, share):
    """The norm, its bits on this rank, and by how much each gradient was scaled."""
    own, common = held_by(world, dtype)
    norm = math.sqrt(own.abs().double().square().sum() + common.abs().double().square().sum())
    mine = own[world.rank].clone()
    gradients = [(mine, 1), (common.clone(), world.size), (torch.empty(0, dtype=dtype), 1)]
    found = clip(gradients, share * norm, world)
    after = global_norm(gradients, world)
    direction = torch.nn.functional.cosine_similarity(mine.abs(), own[world.rank].abs(), dim=0)
    return found.item().hex(), found.item() / norm, after.item() / norm, direction.item()


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.25, 4.0])
def test_each_number_counts_once_whichever_rank_holds_it(world_size, dtype, share):
    found = run(clipped, world_size, (dtype, share)).values
    assert len({bits for bits, *_ in found}) == 1
    for _, norm, after, direction in found:
        assert norm == pytest.approx(1, rel=1e-6)
        assert after == pytest.approx(min(1, share), rel=1e-2 if dtype == torch.bfloat16 else 1e-5)
        assert direction == pytest.approx(1, rel=1e-2)


def room_that_it_takes(world):
    gradient = torch.ones(1_000_000)
    with Meter() as meter:
        meter.mark([gradient], "gradients")
        clip([(gradient, 1)], 1.0, world)
    return meter.usage.peak_of("other")


def test_the_norm_takes_no_memory_besides_the_gradients():
    assert run(room_that_it_takes, 1).values[0] < 200


def test_a_max_norm_that_is_not_above_0_is_refused():
    with pytest.raises(RankError, match="max_norm=.*a norm above 0"):
        run(lambda world: clip([(torch.ones(3), 1)], 0, world), 1)


def asks_torch(world):
    """Return results of torch's own clipping and GradScaler for a stage and for shares of layers.

    The last layer is averaged by DDP, whose second pass has other buckets.
    """
    x = torch.ones(4, 3)
    stage = nn.Linear(3, 3)
    schedule = plan(one_f_one_b, world.size, 2)
    for _ in range(2):  # gradients add up
        Pipeline(schedule, {world.rank: stage}, F.mse_loss, world).step(x, x)
    torch.manual_seed(0)
    layer, other = (
        nn.Sequential(
            ColumnLinear(nn.Linear(3, 4), world), nn.Tanh(), RowLinear(nn.Linear(4, 3), world)
        )
        for _ in range(2)
    )
    averaged = DDP(other, world.split(world.rank))
    for _ in range(2):
        layer(x).sum().backward()
        averaged(x).sum().backward()
    reported = []
    for module in (stage, layer, averaged):
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(1))
        for ask in (
            partial(nn.utils.clip_grad_norm_, module.parameters(), 1.0),
            partial(scaler.step, optimizer),
        ):
            try:
                ask()
                reported.append("")
            except RuntimeError as why:
                reported.append(str(why))
        optimizer.step()
    return reported


def test_parts_of_a_model_refuse_torchs_own_clipping_and_scaling():
    assert run(asks_torch, 1).values == [[""] * 6]
    for reported in run(asks_torch, 2).values:
        assert ["clip_gradients" in text for text in reported] == [True, False] * 3
        assert ["GradScaler" in text for text in reported] == [False, True] * 3
