"""The ring against the sum in float64, at world sizes 1 to 4 and sizes that do not divide."""

import random
import re

import pytest
import torch

from labkit import run
from labkit.collectives import plain, ring, ring_all_gather, ring_all_reduce, ring_reduce_scatter
from tests.refused import messages_of

WORLD_SIZES = [1, 2, 3, 4]
DTYPES = [torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
DTYPES += [torch.float64, torch.complex64]


def random_tensor(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 50, shape, generator=generator, dtype=dtype)


def assert_is_sum(result, inputs):
    """`result` is the sum of `inputs` up to the rounding of n - 1 additions in its dtype."""
    dtype = result.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        assert torch.equal(result, torch.stack(inputs).sum(0).to(dtype))
        return
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = torch.stack([x.to(wide) for x in inputs]).sum(0)
    # Each of n - 1 additions rounds a partial sum of at most sum |x| by half an epsilon or less.
    magnitude = torch.stack([x.to(wide).abs() for x in inputs]).sum(0)
    bound = (len(inputs) - 1) * torch.finfo(dtype).eps * magnitude
    assert ((result.to(wide) - exact).abs() <= bound).all()


def reduce_cases(world, cases):
    """Every case through the plain ring, and all three functions, new and in place."""
    results = []
    for shape, dtype, seed in cases:
        x = random_tensor(shape, dtype, seed + world.rank)
        before = x.clone()
        plainly = plain.ring_all_reduce(x, world)
        total = ring_all_reduce(x, world)
        chunk = ring_reduce_scatter(x, world)
        gathered = ring_all_gather(chunk, x.numel(), world)
        assert torch.equal(x, before), "x was changed"
        assert_works_in_place(x.clone(), chunk, gathered, world)
        ring_all_reduce(x, world, out=x)
        results.append((before, total, chunk, gathered, x, plainly))
    return results


def assert_works_in_place(x, chunk, gathered, world):
    """Nothing is allocated: the results are in x's own memory."""
    found = ring_reduce_scatter(x, world, in_place=True)
    assert torch.equal(found, chunk)
    assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    whole = x.flatten()
    assert ring_all_gather(found, x.numel(), world, out=whole) is not None
    assert torch.equal(whole, gathered)


def cases_of(world_size):
    """Every small size, to more than two elements a rank; on 3 every dtype."""
    chance = random.Random(world_size)
    cases = [((numel,), torch.float32) for numel in range(2 * world_size + 3)]
    for dtype in DTYPES if world_size == 3 else []:
        cases += [((), dtype), (tuple(chance.randrange(12) for _ in range(3)), dtype)]
    return [(*case, 10 * number) for number, case in enumerate(cases)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_equals_the_sum_for_any_size_and_dtype(world_size):
    by_rank = run(reduce_cases, world_size, (cases_of(world_size),), timeout=600).values
    for case in zip(*by_rank, strict=True):
        inputs = [before for before, *_ in case]
        for rank, (x, total, chunk, gathered, in_place, plainly) in enumerate(case):
            assert total.shape == x.shape
            assert total.dtype == x.dtype
            assert_is_sum(total, inputs)
            assert torch.equal(in_place, total)
            assert torch.equal(plainly, total), "the same chunks, added in the same order"
            assert torch.equal(gathered, total.flatten())
            assert torch.equal(chunk, total.flatten().tensor_split(world_size)[rank])
            assert torch.equal(total, case[0][1]), "ranks disagree"


def in_blocks(world):
    """Chunks of one block and an element more."""
    x = torch.arange(ring.BLOCK_BYTES // 4 * world.size + 1, dtype=torch.int32)
    mine, whole = x * (world.rank + 1), x * 3
    chunk = ring_reduce_scatter(mine, world)
    return [
        torch.equal(ring_all_reduce(mine, world), whole),
        torch.equal(ring_all_gather(chunk, x.numel(), world), whole),
        torch.equal(ring_reduce_scatter(mine, world, in_place=True), chunk),
    ]


def test_equals_the_sum_where_chunks_travel_in_blocks():
    assert run(in_blocks, 2).values == [[True] * 3] * 2


def misused(world):
    return messages_of(
        lambda: ring_all_reduce(torch.ones(3).bool(), world),
        lambda: ring_all_reduce(torch.ones(3), world, out=torch.ones(4)),
        lambda: ring_all_reduce(torch.ones(3).to(torch.float8_e4m3fn), world),
        lambda: ring_all_gather(torch.ones(9), 3, world),
        lambda: ring_all_gather(torch.ones(2), 4, world, out=torch.ones(5)),
        lambda: ring_all_gather(torch.ones(2), 4, world, out=torch.ones(8)[::2]),
    )


def test_wrong_calls_are_refused():
    boolean, out, no_sum, chunk, short, strided = run(misused, 2).values[0]
    assert "boolean" in boolean
    assert "out" in out and "(3,)" in out
    assert "float8_e4m3fn" in no_sum
    assert [int(number) for number in re.findall(r"\d+", chunk)] == [0, 2, 2, 3, 9, 2]
    assert "out" in short and "(5,)" in short
    assert "out" in strided and "stride 2" in strided
