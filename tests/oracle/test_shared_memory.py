"""Collectives through shared memory against the serial sum, at world sizes 1 to 7.

All cases of a world size share one launch. The memory is full of NaN before each, and small, so
that tensors pass through it in many blocks.
"""

import functools
import random
import time

import pytest
import torch

from labkit import RankError, run
from labkit.comm import (
    SharedMemory,
    shared_memory_all_gather,
    shared_memory_all_reduce,
    shared_memory_reduce_scatter,
)
from labkit.comm.shared_memory.barrier import Barrier
from labkit.comm.shared_memory.collectives import ALIGNMENT, NUM_SLOTS
from tests.refused import assert_refused

WORLD_SIZES = [1, 2, 3, 4, 7]
DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES += [torch.complex64, torch.complex128]
# Layouts of each rank's x: contiguous, and views of something larger.
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.view(-1, 1).expand(-1, 3).contiguous().t(),
    "strided": lambda x: torch.stack([x, x + 1], 1)[:, 0],
    "expanded": lambda x: x[:1].expand(5) if len(x) else x,
    "a part of a storage": lambda x: torch.cat([x, x])[len(x) :],
    "conjugated": lambda x: x.conj(),
}


def tensor_of(rank, case):
    """Return a rank's input: every rank can make every other's."""
    numel, dtype, layout, seed = case
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    x = torch.randn(numel, generator=generator, dtype=torch.float64) * 20
    return LAYOUTS[layout](x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype))


def serial_sum(size, case):
    """In the order of ranks: the same bits, whatever rounding does."""
    return functools.reduce(torch.add, [tensor_of(rank, case) for rank in range(size)])


def smallest_memory(world):
    return SharedMemory(world, ALIGNMENT * NUM_SLOTS * world.size**2)


def poison(world, memory):
    """Every byte 255: NaN in each floating dtype, -1 or 255 in the others."""
    world.barrier()
    if world.rank == 0:
        memory._supersteps.areas.fill_(255)
    world.barrier()


def faults_of(world, cases):
    """Every case through all three operations; what is not as it should be."""
    memory = smallest_memory(world)
    faults = []

    def expect(case, what, result, expected):
        if not (result.dtype == expected.dtype and torch.equal(result, expected)):
            faults.append((case, what, result, expected))

    for case in cases:
        expected = serial_sum(world.size, case)
        own = expected.flatten().tensor_split(world.size)[world.rank]
        x = tensor_of(world.rank, case)
        poison(world, memory)
        expect(case, "all_reduce", memory.all_reduce(x), expected)
        poison(world, memory)
        chunk = memory.reduce_scatter(x)
        expect(case, "reduce_scatter", chunk, own)
        poison(world, memory)
        gathered = memory.all_gather(chunk, x.numel())
        expect(case, "all_gather", gathered, expected.flatten())
        expect(case, "x left alone", x, tensor_of(world.rank, case))
        in_place = x.clone()
        memory.all_reduce(in_place, out=in_place)
        expect(case, "in place", in_place, expected)
    return faults


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_equals_the_serial_sum_for_every_size_and_dtype(world_size):
    sizes = [0, 1, 2, 7, 8, 500, 1003]
    cases = [(numel, torch.float32, "contiguous", numel) for numel in sizes]
    if world_size == 3:  # dtypes and layouts know nothing of ranks
        cases += [(37, dtype, "contiguous", 1) for dtype in DTYPES]
        cases += [(numel, torch.complex64, layout, 2) for numel in (0, 24) for layout in LAYOUTS]
    assert run(faults_of, world_size, (cases,), timeout=600).values == [[]] * world_size


def gather_what_has_no_sum(world):
    lines = []
    for dtype in (torch.bool, torch.float8_e4m3fn):
        x = torch.arange(13).remainder(2).to(dtype)
        whole = shared_memory_all_gather(x.tensor_split(world.size)[world.rank], 13, world)
        lines.append(whole.dtype == dtype and torch.equal(whole.float(), x.float()))
    return lines


def test_an_all_gather_takes_dtypes_without_a_sum():
    assert run(gather_what_has_no_sum, 3).values == [[True, True]] * 3


def with_delays(world, num_blocks):
    """Ranks come late to the barriers and leave them late, each by its own chance."""
    chance, wait = random.Random(world.rank), Barrier.wait

    def late(barrier, timeout_s):
        time.sleep(chance.choice([0, 0, 0.001, 0.004]))
        wait(barrier, timeout_s)
        time.sleep(chance.choice([0, 0, 0.001, 0.004]))

    Barrier.wait = late
    numel = num_blocks * world.size * ALIGNMENT // 4 - 3
    return faults_of(world, [(numel, torch.float32, "contiguous", seed) for seed in (1, 2)])


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_no_block_is_overwritten_before_it_is_read_nor_read_before_it_is_there(world_size):
    assert run(with_delays, world_size, (12,), timeout=600).values == [[]] * world_size


def through_the_functions(world):
    assert shared_memory_all_reduce(torch.tensor(2), world) == torch.tensor(8)
    results = []
    half = world.split(world.rank % 2)
    for group in (world, half, world):
        x = torch.arange(11.0) + world.rank
        chunk = shared_memory_reduce_scatter(x, group)
        results.append((shared_memory_all_reduce(x, group), chunk))
        assert torch.equal(shared_memory_all_gather(chunk, 11, group), results[-1][0])
    return results


def test_the_functions_keep_a_memory_for_each_group():
    result = run(through_the_functions, 4)
    for rank, (of_all, of_half, again) in enumerate(result.values):
        assert torch.equal(of_all[0], 4 * torch.arange(11.0) + 6)
        assert torch.equal(of_half[0], 2 * torch.arange(11.0) + 2 + 2 * (rank % 2))
        assert torch.equal(again[0], of_all[0])
        kinds = [operation.kind for operation in result.timeline[rank].operations]
        assert kinds.count("share_memory") == 2


def into_out(world):
    memory = smallest_memory(world)  # so that results come while x is still being read
    x = torch.arange(400.0).view(20, 20) + world.rank
    strided = torch.zeros(20, 40)[:, ::2]
    memory.all_reduce(x, out=strided)
    turned = x.clone()
    memory.all_reduce(turned, out=turned.t())
    shifted = torch.arange(500.0) + world.rank
    memory.all_reduce(shifted[:-100], out=shifted[100:])
    grown = torch.ones(3, requires_grad=True) * 2
    return strided.clone(), turned, shifted, memory.all_reduce(grown)


def test_out_may_be_a_view_of_x_itself():
    total = 3 * torch.arange(400.0) + 3
    for strided, turned, shifted, detached in run(into_out, 3).values:
        assert torch.equal(strided, total.view(20, 20))
        assert torch.equal(turned, total.view(20, 20).t())
        assert torch.equal(shifted[100:], total)
        assert torch.equal(detached, torch.full((3,), 6.0))
        assert not detached.requires_grad


def test_wrong_calls_are_refused():
    x = torch.ones(3)

    def shared_memory(world):
        shared_memory_all_reduce(x, world)

    assert_refused(
        (lambda w: shared_memory_all_reduce(x.bool(), w), TypeError, "booleans"),
        (
            lambda w: shared_memory_all_reduce(x, w, out=torch.ones(4)),
            ValueError,
            r"out .*\(4,\)",
        ),
        (lambda w: shared_memory_all_reduce(3.0, w), TypeError, "got 3.0"),
        (
            lambda w: shared_memory_reduce_scatter(x.to(torch.float8_e4m3fn), w),
            TypeError,
            "float8_e4m3fn",
        ),
        (lambda w: shared_memory_all_gather(torch.ones(9), 3, w), ValueError, "chunk has 9"),
        make=shared_memory,
    )
    with pytest.raises(RankError, match="capacity_bytes=100: .* at least 512"):
        run(SharedMemory, 2, (100,))
