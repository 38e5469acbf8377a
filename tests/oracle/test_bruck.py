"""Bruck's all-gather against the chunks joined in one process, on one to eight ranks."""

import pytest
import torch

from labkit import run
from labkit.collectives import bruck_all_gather

WORLD_SIZES = [1, 2, 3, 4, 5, 7, 8]
NUMELS = [0, 1, 2, 5, 11, 101, 1003]
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64]


def whole_of(numel, dtype=torch.int64):
    return torch.arange(numel).remainder(251).to(dtype)


def gather_each(world):
    """The results by size, of a chunk that is not contiguous, and in place."""
    found = []
    for numel in NUMELS:
        own = whole_of(numel).tensor_split(world.size)[world.rank]
        chunk = own.repeat_interleave(2)[::2]
        found.append(bruck_all_gather(chunk, numel, world))
        assert torch.equal(chunk, own), "the chunk was changed"
        out = torch.full((numel,), -1)
        place = out.tensor_split(world.size)[world.rank]
        place.copy_(own)
        result = bruck_all_gather(place, numel, world, out=out)
        assert result.data_ptr() == out.data_ptr()
        assert torch.equal(out, found[-1])
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_gets_all_chunks_in_rank_order(world_size):
    for found in run(gather_each, world_size).values:
        for numel, whole in zip(NUMELS, found, strict=True):
            assert torch.equal(whole, whole_of(numel))


def gather_dtypes(world):
    wholes = [whole_of(11, dtype) for dtype in DTYPES]
    chunks = [whole.tensor_split(world.size)[world.rank] for whole in wholes]
    return [bruck_all_gather(chunk, 11, world) for chunk in chunks]


def test_bits_of_any_dtype_arrive():
    for found in run(gather_dtypes, 3).values:
        for dtype, whole in zip(DTYPES, found, strict=True):
            assert whole.dtype == dtype
            assert torch.equal(whole, whole_of(11, dtype))


def gather_in_half(world):
    half = world.split(world.rank % 2)
    return bruck_all_gather(torch.tensor([float(world.rank)]), half.size, half).tolist()


def test_groups_within_the_world():
    even, odd = [0, 2, 4, 6], [1, 3, 5]
    assert run(gather_in_half, 7).values == [even, odd, even, odd, even, odd, even]


def misused(world):
    messages = []
    for call in (
        lambda: bruck_all_gather(3.0, 4, world),
        lambda: bruck_all_gather(torch.ones(3), 4, world),
        lambda: bruck_all_gather(torch.ones(2), 4, world, out=torch.ones(5)),
        lambda: bruck_all_gather(torch.ones(2), "4", world),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_wrong_calls_are_refused_before_anything_is_sent():
    result = run(misused, 2)
    assert [traffic.by_operation for traffic in result.traffic] == [{}, {}]
    for message, says in zip(
        result.values[0],
        ["got 3.0", "rank 0 of 2 holds 2 of 4 elements, but its chunk has 3", "out", "numel='4'"],
        strict=True,
    ):
        assert says in message
