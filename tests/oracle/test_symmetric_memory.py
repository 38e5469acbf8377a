"""The all-reduce of tensors that lie in shared memory, against the serial sum."""

import functools
import random
import time

import pytest
import torch

from labkit import Mismatch, RankError, run
from labkit.comm import SharedMemory, SymmetricMemory
from labkit.comm.shared_memory import symmetric
from labkit.comm.shared_memory.barrier import Barrier
from labkit.data_parallel import DDP, SymmetricBuckets
from tests.refused import messages_of

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES += [torch.complex64, torch.complex128]
SIZES = [0, 1, 2, 3, 5, 7, 8, 9, 500, 1003]
CASES = [(numel, torch.float32) for numel in SIZES] + [(37, dtype) for dtype in DTYPES]


def tensor_of(rank, case):
    """Return a rank's input: every rank can make every other's."""
    numel, dtype = case
    generator = torch.Generator().manual_seed(1000 * numel + rank)
    x = torch.randn(numel, generator=generator, dtype=torch.float64) * 20
    return x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype)


def faults_of(world, cases, block_bytes):
    """All cases in one memory, twice, one after the other; those that aren't as they should be."""
    symmetric.BLOCK_BYTES = block_bytes
    memory = SymmetricMemory(world, sum(n * dtype.itemsize + 64 for n, dtype in cases))
    memory._rows[world.rank].fill_(255)  # NaN in each floating dtype
    tensors = memory.carve(cases)
    faults = []
    for time_of in (1, 2):
        for x, case in zip(tensors, cases, strict=True):
            x.copy_(tensor_of(world.rank, case))
            result = memory.all_reduce(x)
            serial = functools.reduce(torch.add, [tensor_of(r, case) for r in range(world.size)])
            if result is not x or not torch.equal(x, serial):
                faults.append((time_of, case))
    return faults


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_equals_the_serial_sum_for_every_size_and_dtype(world_size):
    result = run(faults_of, world_size, (CASES, 256), timeout=600)
    assert result.values == [[]] * world_size


def with_delays(world):
    """Ranks come late to the barriers and leave them late, each by its own chance."""
    chance, wait = random.Random(world.rank), Barrier.wait

    def late(barrier, timeout_s):
        time.sleep(chance.choice([0, 0, 0.001, 0.004]))
        wait(barrier, timeout_s)
        time.sleep(chance.choice([0, 0, 0.001, 0.004]))

    Barrier.wait = late
    return faults_of(world, [(499 + number, torch.float32) for number in range(8)], 256)


def test_values_are_read_after_they_are_written_and_before_they_are_overwritten():
    assert run(with_delays, 3, timeout=600).values == [[]] * 3


def a_part(world):
    memory = SymmetricMemory(world, 400)
    (x,) = memory.carve([(100, torch.float32)])
    x.fill_(1)
    memory.all_reduce(x[10:40].view(5, 6))
    return [x[:10].sum().item(), x[10:40].sum().item(), x[40:].sum().item()]


def test_a_part_of_a_tensor_can_be_summed_alone():
    assert run(a_part, 2).values == [[10, 60, 60]] * 2


def misused(world):
    memory = SymmetricMemory(world, 400)
    (x,) = memory.carve([(100, torch.float32)])
    buckets = SymmetricBuckets(world)
    return messages_of(
        lambda: memory.all_reduce(torch.ones(3)),
        lambda: memory.all_reduce(x[::2]),
        lambda: memory.all_reduce(x.view(torch.bool)),
        lambda: memory.carve([(10, torch.float32), (90, torch.float64)]),
        lambda: buckets(x, world),
        lambda: buckets(x, world.split(world.rank)),
    )


def test_wrong_calls_are_refused():
    elsewhere, strided, boolean, full, unheld, group = run(misused, 2).values[0]
    assert "(3,)" in elsewhere
    assert "(50,)" in strided
    assert "boolean" in boolean
    assert "448" in full and "784" in full
    assert "DDP" in unheld
    assert "[0, 1]" in group and "[0]" in group


def one_wants_more(world):
    SymmetricMemory(world, 64 * (1 + world.rank))


def another_place(world):
    memory = SymmetricMemory(world, 1000)
    x, y = memory.carve([(3, torch.float32)] * 2)
    memory.all_reduce(y if world.rank == 1 else x)


def another_kind_of_memory(world):
    shared, own = SharedMemory(world), SymmetricMemory(world, 100)
    (x,) = own.carve([(3, torch.float32)])
    (own if world.rank == 1 else shared).all_reduce(x)


def in_too_little(world):
    SymmetricMemory(world, 2**52)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (another_place, r"byte \d+ .* byte \d+"),
        (another_kind_of_memory, r"rank \d .*shared memory [12]"),
        (in_too_little, f"{2**53:,} bytes"),
        # Last: ranks stay, and count the memories that they have made, here not the same number.
        (one_wants_more, "rank 1 .* 128 bytes, .*rank 0 .* 64"),
    ],
)
def test_ranks_that_give_different_memory_get_an_error(fault, said):
    with pytest.raises((RankError, Mismatch), match=said):
        run(fault, 2, timeout=600)


def wrapped_twice(world):
    buckets = SymmetricBuckets(world)
    DDP(torch.nn.Linear(2, 2), world, buckets)
    DDP(torch.nn.Linear(2, 2), world, buckets)


def test_symmetric_buckets_hold_the_buckets_of_one_module():
    with pytest.raises(RankError, match="holds the buckets of another module"):
        run(wrapped_twice, 2)
