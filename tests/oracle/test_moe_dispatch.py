"""Dispatch and combine: which rows come, in which order, and that one is the other transposed."""

import functools
from typing import NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode

from labkit import run
from labkit.model import GPTConfig
from labkit.moe import (
    ExpertParallelMoE,
    MoEConfig,
    combine,
    dispatch,
    experts_by_rank,
    make_plan,
)

D = 3
# Tokens of each rank, for up to four of them, and experts: shapes that nothing divides.
CASES = {
    "uneven": ([5, 2, 7, 4], 5),
    "a rank without tokens": ([6, 0, 3, 0], 4),
    "no tokens at all": ([0, 0, 0, 0], 3),
    "fewer experts than ranks": ([4, 3, 2, 5], 2),
    "all to one expert": ([4, 3, 2, 5], 6),
}


class Pairs(NamedTuple):
    """Assignments of one rank's tokens."""

    token_A: torch.Tensor
    expert_A: torch.Tensor


def pairs_of(name, rank):
    """Up to two experts for each token, in no order; some tokens have none."""
    num_tokens, num_experts = CASES[name][0][rank], CASES[name][1]
    generator = torch.Generator().manual_seed(rank)
    token_A = torch.arange(num_tokens).repeat(2)
    expert_A = torch.randint(num_experts, token_A.shape, generator=generator)
    if name == "all to one expert":
        expert_A = torch.full_like(token_A, num_experts - 1)
    kept = torch.rand(token_A.shape, generator=generator) < 0.8
    order = torch.randperm(int(kept.sum()), generator=generator)
    return Pairs(token_A[kept][order], expert_A[kept][order])


def there_and_back(world, names):
    found = {}
    for name in names:
        num_tokens, num_experts = CASES[name][0][world.rank], CASES[name][1]
        generator = torch.Generator().manual_seed(100 + world.rank)
        x = torch.arange(num_tokens * D, dtype=torch.float64).view(-1, D) + 100 * world.rank
        x.requires_grad_()
        held = experts_by_rank(num_experts, world.size)
        plan = make_plan(*pairs_of(name, world.rank), num_tokens, held, world)
        rows = dispatch(x, plan)
        y = torch.randn(rows.shape, generator=generator, dtype=torch.float64, requires_grad=True)
        back = combine(y, plan)
        g = torch.randn(back.shape, generator=generator, dtype=torch.float64)
        (of_x,) = torch.autograd.grad((rows * y.detach()).sum(), x)
        (of_y,) = torch.autograd.grad((back * g).sum(), y)
        found[name] = (x.detach(), rows.detach(), y.detach(), back.detach(), of_x, of_y, g, plan)
        found[name] = (*found[name][:-1], plan.expert_rows)
    return found


@functools.cache
def ranks(world_size):
    return run(there_and_back, world_size, (list(CASES),)).values


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_rows_arrive_sorted_by_expert_then_by_rank(world_size, name):
    values = ranks(world_size)
    for rank, held in enumerate(experts_by_rank(CASES[name][1], world_size)):
        expected, counts = [], []
        for expert in held:
            mine = []
            for source in range(world_size):
                pairs, x = pairs_of(name, source), values[source][name][0]
                mine += [x[t] for t, e in zip(*pairs) if e == expert]
            expected += mine
            counts.append(len(mine))
        _, rows, *_, expert_rows = values[rank][name]
        assert expert_rows == counts
        assert [*map(tuple, rows.tolist())] == [tuple(row.tolist()) for row in expected]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_combine_is_the_adjoint_of_dispatch(world_size, name):
    """<dispatch x, y> = <x, combine y>, and the gradient of each is the other."""
    there = back_again = 0.0
    for x, rows, y, back, of_x, _, _, _ in (values[name] for values in ranks(world_size)):
        there += (rows * y).sum().item()
        back_again += (x * back).sum().item()
        torch.testing.assert_close(of_x, back, rtol=1e-14, atol=1e-14)
    assert there == pytest.approx(back_again, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_combine_sends_rows_again(world_size, name):
    left = right = 0.0
    for _, _, y, back, _, of_y, g, _ in (values[name] for values in ranks(world_size)):
        left += (back * g).sum().item()
        right += (y * of_y).sum().item()
    assert left == pytest.approx(right, rel=1e-12, abs=1e-12)


def weighted(world, name):
    num_tokens, num_experts = CASES[name][0][world.rank], CASES[name][1]
    pairs = pairs_of(name, world.rank)
    held = experts_by_rank(num_experts, world.size)
    plan = make_plan(*pairs, num_tokens, held, world)
    x = torch.randn(num_tokens, D, dtype=torch.float64)
    weight_A = torch.randn(len(pairs.token_A), dtype=torch.float64, requires_grad=True)
    y = combine(dispatch(x, plan), plan, weight_A)  # as if each expert gave back what it got
    y.sum().backward()
    expected = torch.zeros_like(x).index_add(0, pairs.token_A, x[pairs.token_A] * weight_A[:, None])
    return y.detach() - expected.detach(), weight_A.grad - x[pairs.token_A].sum(1)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_in_the_order_of_the_given_assignments(name):
    for of_values, of_weights in run(weighted, 3, (name,)).values:
        assert of_values.abs().sum() < 1e-12
        assert of_weights.abs().sum() < 1e-12


class HostWaits(TorchFunctionMode):
    """Finds what waits for the device on a GPU: a value, or a shape, that Python needs."""

    NAMES = ("item", "tolist", "__int__", "__bool__", "__float__", "cpu", "nonzero", "bincount")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        index = args[1] if name in ("__getitem__", "__setitem__") else ()
        masks = index if isinstance(index, tuple) else (index,)
        is_mask = any(isinstance(m, torch.Tensor) and m.dtype == torch.bool for m in masks)
        is_of_unknown_size = name == "repeat_interleave" and "output_size" not in kwargs
        if name in self.NAMES or is_mask or is_of_unknown_size:
            self.found.append(name)
        return func(*args, **kwargs)


def waits_of(world, options):
    layer = ExpertParallelMoE(GPTConfig(hidden=6, num_heads=2), MoEConfig(**options), world)
    x = torch.randn(1, 9 - world.rank, 6, requires_grad=True)
    with HostWaits() as waits:
        y, _ = layer(x)
        y.sum().backward()
    return waits.found


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({}, ["tolist"]),
        ({"router": "bias_balanced"}, ["tolist"]),
        ({"router": "expert_choice"}, ["tolist"]),
        ({"capacity_factor": 0.6}, ["nonzero", "tolist"]),
    ],
)
def test_the_host_waits_only_for_counts_and_dropped_choices(options, waits):
    for found in run(waits_of, 3, (options,)).values:
        assert found == waits
