"""Hierarchical all-reduce against the sum in float64, for all numbers of hosts."""

import pytest
import torch

from labkit import run
from labkit.collectives import hierarchical_all_reduce, ring_all_gather, two_tiers
from tests.refused import messages_of

WORLD_SIZES = [1, 2, 6]
DTYPES = [torch.uint8, torch.int64, torch.bfloat16, torch.complex64]
CASES = [((numel,), torch.float32) for numel in (0, 1, 2, 8, 67)]
CASES += [((), torch.float64), ((0, 3), torch.int64), ((5, 7), torch.float32)]
CASES += [((45,), dtype) for dtype in DTYPES]
FEW_CASES = CASES[1:5:3]  # fewer elements than ranks, and more


def divisors(n):
    return [number for number in range(1, n + 1) if n % number == 0]


def random_tensor(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 30, shape, generator=generator, dtype=dtype)


def reduce_cases(world):
    """By ranks per host: new and in place, with two ranks on a host in every case."""
    results = {}
    for ranks_per_host in divisors(world.size):
        fast, slow = two_tiers(world, ranks_per_host)
        for number, (shape, dtype) in enumerate(CASES if ranks_per_host == 2 else FEW_CASES):
            x = random_tensor(shape, dtype, 100 * number + world.rank)
            before = x.clone()
            total = hierarchical_all_reduce(x, fast, slow)
            assert torch.equal(x, before), "x was changed"
            assert hierarchical_all_reduce(x, fast, slow, out=x).data_ptr() == x.data_ptr()
            assert torch.equal(x, total)
            results[ranks_per_host, number] = (before, total)
    return results


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_equals_the_sum_on_any_hosts(world_size):
    by_rank = run(reduce_cases, world_size, timeout=600).values
    for key, (x, first) in by_rank[0].items():
        inputs = [results[key][0] for results in by_rank]
        wide = torch.complex128 if x.dtype.is_complex else torch.float64
        exact = torch.stack([each.to(wide) for each in inputs]).sum(0)
        bound = 0.0
        if x.dtype.is_floating_point or x.dtype.is_complex:
            # Each of n - 1 additions rounds a partial sum of at most sum |x| by half an epsilon.
            magnitude = torch.stack([each.to(wide).abs() for each in inputs]).sum(0)
            bound = (world_size - 1) * torch.finfo(x.dtype).eps * magnitude
        assert first.shape == x.shape and first.dtype == x.dtype and first.is_contiguous()
        assert ((first.to(wide) - exact).abs() <= bound).all(), key
        for results in by_rank:
            assert torch.equal(results[key][1], first), "ranks disagree"


def into_another_target(world):
    x = torch.arange(12.0).view(3, 4).t() * (world.rank + 1)
    target = torch.empty(4, 3)
    result = hierarchical_all_reduce(x, *two_tiers(world, 2), out=target)
    assert result.data_ptr() == target.data_ptr()
    return target


def test_takes_any_memory_layout_and_a_target(on_two_hosts):
    for target, _, _ in on_two_hosts:
        assert torch.equal(target, torch.arange(12.0).view(3, 4).t() * 10)


def with_other_parts(world):
    """Parts of the library's, and who takes part in which."""
    calls = []

    def reduce_scatter(x, group):
        calls.append(("reduce_scatter", group.ranks))
        return group.all_reduce(x).flatten().tensor_split(group.size)[group.rank]

    def all_reduce(x, group):
        calls.append(("all_reduce", group.ranks))
        return group.all_reduce(x)

    def all_gather(chunk, numel, group):
        calls.append(("all_gather", group.ranks))
        return ring_all_gather(chunk, numel, group)

    parts = {"reduce_scatter": reduce_scatter, "all_reduce": all_reduce, "all_gather": all_gather}
    total = hierarchical_all_reduce(torch.ones(7), *two_tiers(world, 2), **parts)
    return total, calls


def test_a_host_is_neighbouring_ranks_and_the_three_parts_can_be_exchanged(on_two_hosts):
    for rank, (_, (total, calls), _) in enumerate(on_two_hosts):
        host, pair = ((0, 1), (2, 3))[rank // 2], ((0, 2), (1, 3))[rank % 2]
        assert total.tolist() == [4.0] * 7
        assert calls == [("reduce_scatter", host), ("all_reduce", pair), ("all_gather", host)]


def misused(world):
    fast, slow = two_tiers(world, 2)
    return messages_of(
        lambda: hierarchical_all_reduce(torch.ones(3), fast, fast),
        lambda: hierarchical_all_reduce(torch.ones(3), world, slow),
        lambda: hierarchical_all_reduce(torch.ones(3).bool(), fast, slow),
        lambda: hierarchical_all_reduce(torch.ones(3), fast, slow, out=torch.ones(4)),
    )


def test_wrong_calls_are_refused(on_two_hosts):
    _, _, (twice, whole, boolean, out) = on_two_hosts[1]
    assert "[0, 1]" in twice
    assert "two_tiers(world, ranks_per_host)" in whole
    assert "boolean" in boolean
    assert "out" in out and "(3,)" in out


@pytest.fixture(scope="module")
def on_two_hosts():
    """Return each of four ranks' results of the functions above."""
    functions = (into_another_target, with_other_parts, misused)
    return run(lambda world: [each(world) for each in functions], 4).values
