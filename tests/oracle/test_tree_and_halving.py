"""Trees, halving-doubling and the chain against the sum in float64, on one to eight ranks."""

import functools
import random
import time

import pytest
import torch

from labkit import run
from labkit.collectives import (
    double_tree_all_reduce,
    halving_doubling_all_reduce,
    ring_all_reduce,
    ring_broadcast,
    tree_all_reduce,
    tree_broadcast,
    tree_reduce,
)

WORLD_SIZES = [1, 2, 3, 4, 7, 8]
ALL_REDUCES = [tree_all_reduce, double_tree_all_reduce, halving_doubling_all_reduce]
BROADCASTS = [tree_broadcast, ring_broadcast]
BLOCK_BYTES = 40
SHAPES = [(0,), (1,), (2,), (5,), (11,), (101,), (), (3, 5), (0, 4), (2, 3, 7)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
DTYPES += [torch.uint8, torch.complex64]
CASES = [(shape, torch.float32) for shape in SHAPES] + [((5, 9), dtype) for dtype in DTYPES]
# For another number of ranks: what changes is who talks to whom.
FEW_CASES = [((2,), torch.float32), ((11,), torch.float32)]
# For each root: fewer elements than ranks, columns of a tensor in blocks; and nothing, and many
# blocks.
FEW_ROOT_CASES = [((2,), torch.int64), ((5, 9), torch.bfloat16)]
ROOT_CASES = [*FEW_ROOT_CASES, ((0,), torch.float32), ((101,), torch.float64)]


def roots(world_size):
    """The first, the second and the last: the others are these, renumbered."""
    return sorted({0, min(1, world_size - 1), world_size - 1})


def random_tensor(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 50, shape, generator=generator, dtype=dtype)


def inputs(world_size, cases):
    """By case, by rank. Of the two-dimensional ones every other column: not contiguous."""
    return [
        [random_tensor(shape, dtype, 10 * case + rank) for rank in range(world_size)]
        if len(shape) != 2
        else [
            random_tensor((2 * shape[1], shape[0]), dtype, 10 * case + rank).T[:, ::2]
            for rank in range(world_size)
        ]
        for case, (shape, dtype) in enumerate(cases)
    ]


def assert_is_sum(result, parts):
    """`result` is the sum of `parts` up to the rounding of n - 1 additions in its dtype."""
    dtype = result.dtype
    assert (result.shape, dtype) == (parts[0].shape, parts[0].dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        assert torch.equal(result, torch.stack(parts).sum(0).to(dtype))
        return
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = torch.stack([x.to(wide) for x in parts]).sum(0)
    # Each of n - 1 additions rounds a partial sum of at most sum |x| by half an epsilon or less.
    magnitude = torch.stack([x.to(wide).abs() for x in parts]).sum(0)
    assert (
        (result.to(wide) - exact).abs() <= (len(parts) - 1) * torch.finfo(dtype).eps * magnitude
    ).all()


def sum_each(world, cases):
    """[algorithm][case]: the sum, in blocks; new and in place."""
    return [[summed(world, all_reduce, parts) for parts in cases] for all_reduce in ALL_REDUCES]


def summed(world, all_reduce, parts):
    x = parts[world.rank]
    before = x.clone()
    total = all_reduce(x, world, block_bytes=BLOCK_BYTES)
    assert torch.equal(x, before), "x was changed"
    assert total.is_contiguous()
    mine = x.clone(memory_format=torch.contiguous_format)
    assert all_reduce(mine, world, out=mine).data_ptr() == mine.data_ptr()
    assert torch.equal(mine, total)
    return total


def reduce_to_each(world, cases):
    """[root][case]: what tree_reduce returns; new and in place."""
    return [[reduced(world, parts, root) for parts in cases] for root in roots(world.size)]


def reduced(world, parts, root):
    x = parts[world.rank]
    before = x.clone()
    total = tree_reduce(x, root, world, block_bytes=BLOCK_BYTES)
    mine = x.clone(memory_format=torch.contiguous_format)
    in_place = tree_reduce(mine, root, world, out=mine, block_bytes=BLOCK_BYTES)
    if world.rank == root:
        assert in_place.data_ptr() == mine.data_ptr()
        assert torch.equal(in_place, total)
    else:
        assert in_place is None
        assert torch.equal(mine, before), "x was changed where it is no result"
    assert torch.equal(x, before), "x was changed"
    return total


def broadcast_from_each(world, cases):
    """[root][algorithm][case]: what a broadcast returns; new and in place."""
    return [
        [
            [broadcasted(world, broadcast, parts, root) for parts in cases]
            for broadcast in BROADCASTS
        ]
        for root in roots(world.size)
    ]


def broadcasted(world, broadcast, parts, root):
    x = parts[world.rank]
    before = x.clone()
    result = broadcast(x, root, world, block_bytes=BLOCK_BYTES)
    assert result.is_contiguous()
    assert torch.equal(x, before), "x was changed"
    mine = x.clone(memory_format=torch.contiguous_format)
    assert broadcast(mine, root, world, out=mine).data_ptr() == mine.data_ptr()
    assert torch.equal(mine, result)
    return result


def everything(world, cases, root_cases, broadcast_cases):
    return (
        sum_each(world, cases),
        reduce_to_each(world, root_cases),
        broadcast_from_each(world, broadcast_cases),
    )


def broadcast_inputs(world_size):
    """Booleans travel too."""
    flags = [torch.tensor([rank % 2 == 0, True]) for rank in range(world_size)]
    return [*root_inputs(world_size), flags]


def root_inputs(world_size):
    return inputs(world_size, ROOT_CASES if world_size == 3 else FEW_ROOT_CASES)


def cases_for(world_size):
    return inputs(world_size, CASES if world_size == 3 else FEW_CASES)


@functools.cache
def results(world_size):
    """Return the results of `everything` by rank: one launch for the three tests below."""
    arguments = (cases_for(world_size), root_inputs(world_size), broadcast_inputs(world_size))
    return run(everything, world_size, arguments, timeout=600).values


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_gets_the_same_sum(world_size):
    for algorithm in range(len(ALL_REDUCES)):
        for case, parts in enumerate(cases_for(world_size)):
            totals = [sums[algorithm][case] for sums, _, _ in results(world_size)]
            assert_is_sum(totals[0], parts)
            for total in totals:
                assert torch.equal(total, totals[0]), "ranks disagree"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_only_the_root_gets_the_sum(world_size):
    for number, root in enumerate(roots(world_size)):
        for case, parts in enumerate(root_inputs(world_size)):
            totals = [by_root[number][case] for _, by_root, _ in results(world_size)]
            assert_is_sum(totals.pop(root), parts)
            assert totals == [None] * (world_size - 1)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_gets_the_tensor_of_every_root(world_size):
    for number, root in enumerate(roots(world_size)):
        for algorithm in range(len(BROADCASTS)):
            for case, parts in enumerate(broadcast_inputs(world_size)):
                for _, _, by_root in results(world_size):
                    assert torch.equal(by_root[number][algorithm][case], parts[root])


def on_late_ranks(world, seed):
    """Ranks come at random moments, to calls that follow each other without a pause."""
    late = random.Random(seed + world.rank)
    results = []
    for call in range(3):
        x = torch.full((50 + call,), float(world.rank + call), dtype=torch.float64)
        for all_reduce in ALL_REDUCES:
            time.sleep(late.choice([0, 0, 0.003]))
            results.append(all_reduce(x, world, block_bytes=64)[-1].item())
        for broadcast in BROADCASTS:
            results.append(broadcast(x, call % world.size, world, block_bytes=64)[0].item())
    return results


def test_late_ranks_and_calls_in_a_row_do_not_mix_messages():
    world_size = 5
    ranks = range(world_size)
    expected = [
        value
        for call in range(3)
        for value in [sum(ranks) + call * world_size] * 3 + [call % world_size + call] * 2
    ]
    assert run(on_late_ranks, world_size, (7,), timeout=600).values == [expected] * world_size


def in_two_groups(world):
    """Groups of other numbers than the world's, at the same time."""
    half = world.split(world.rank % 2)
    x = torch.tensor([float(world.rank)])
    return [all_reduce(x, half).item() for all_reduce in ALL_REDUCES] + [
        broadcast(x, 1, half).item() for broadcast in BROADCASTS
    ]


def test_groups_within_the_world():
    even, odd = [[0 + 2 + 4 + 6] * 3 + [2] * 2, [1 + 3 + 5] * 3 + [3] * 2]
    assert run(in_two_groups, 7).values == [even, odd, even, odd, even, odd, even]


def with_gradients(world):
    x = torch.ones(3, requires_grad=True)
    totals = [all_reduce(x, world) for all_reduce in [ring_all_reduce, *ALL_REDUCES]]
    totals += [broadcast(x, 0, world) for broadcast in BROADCASTS]
    totals.append(tree_reduce(x, 0, world.split(world.rank)))
    return [total.requires_grad for total in totals]


@pytest.mark.parametrize("world_size", [1, 2])
def test_no_gradient_flows_through_these_collectives(world_size):
    for requires_grad in run(with_gradients, world_size).values:
        assert not any(requires_grad)


def misused(world):
    messages, four = [], torch.ones(4)
    x = torch.ones(3)
    for call in (
        lambda: tree_reduce(x, 2, world),
        lambda: tree_broadcast(x, -1, world),
        lambda: ring_broadcast(x, world),
        lambda: tree_reduce(x.bool(), 0, world),
        lambda: double_tree_all_reduce(x.to(torch.float8_e4m3fn), world),
        lambda: halving_doubling_all_reduce(3.0, world),
        lambda: tree_all_reduce(x, world, out=torch.ones(4)),
        lambda: tree_broadcast(x, 0, world, out=torch.ones(3).int()),
        lambda: double_tree_all_reduce(x, world, out=torch.ones(6)[::2]),
        lambda: double_tree_all_reduce(four[:3], world, out=four[1:]),
        lambda: ring_broadcast(x, 0, world, block_bytes=0),
        lambda: halving_doubling_all_reduce(x, world, block_bytes=1e6),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_wrong_calls_are_refused_before_anything_is_sent():
    result = run(misused, 2)
    for traffic in result.traffic:
        assert traffic.by_operation == {}
    for message, says in zip(
        result.values[0],
        [
            "root=2 is not a rank of this group of 2; give a number from 0 to 1",
            "root=-1 is not a rank",
            "root=Group(world, rank 0 of 2, ranks=[0, 1]) is not a rank",
            "booleans have no sum; pass x.int()",
            "torch cannot add torch.float8_e4m3fn here; convert x",
            "expected a tensor, got 3.0; wrap numbers as torch.tensor(3.0)",
            "out must be contiguous and like x, (3,) of torch.float32; it is (4,)",
            "it is (3,) of torch.int32. Leave it out",
            "out must be contiguous and like x",
            "out shares some of x's memory",
            "block_bytes=0: a block has a whole number of bytes from 1",
            "block_bytes=1000000.0",
        ],
        strict=True,
    ):
        assert says in message
