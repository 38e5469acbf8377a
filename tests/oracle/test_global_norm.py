"""The norm of gradients that ranks hold alone, or the same as others, and clipping by it."""

import math

import pytest
import torch

from labkit import RankError, run
from labkit.global_norm import clip, global_norm
from labkit.memory import Meter

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
def test_each_number_counts_once_whoever_holds_it(world_size, dtype, share):
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


def test_it_takes_no_room_besides_the_gradients():
    assert run(room_that_it_takes, 1).values[0] < 200


@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan"), "1", True])
def test_a_norm_that_gradients_cannot_have_is_refused(max_norm):
    with pytest.raises(RankError, match="max_norm=.*a norm above 0"):
        run(lambda world: clip([(torch.ones(3), 1)], max_norm, world), 1)
