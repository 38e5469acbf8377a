"""Sequences cut over a group and gathered again, their gradients, and groups on their own."""

import pytest
import torch
from torch.nn import functional as F

from labkit import run
from labkit.context_parallel import (
    contiguous,
    gather_sequence,
    ring_attention,
    shard_sequence,
    zigzag,
)


def of_a_split(world):
    """Pairs of ranks, each with a sequence of its own, from tensors that lie transposed."""
    pair = world.split(world.rank // 2)
    x_BTD = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(world.rank // 2))
    own = shard_sequence(x_BTD, pair, zigzag).unflatten(2, (3, 4)).transpose(1, 2)
    out = ring_attention(own, own, own, pair, True, zigzag, num_tokens=7)
    return x_BTD, gather_sequence(out, pair, zigzag, 2, num_tokens=7)


def test_groups_attend_independently():
    for x_BTD, found in run(of_a_split, 4).values:
        x = x_BTD.unflatten(2, (3, 4)).transpose(1, 2)
        expected = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        torch.testing.assert_close(found, expected)


CASES = [
    (num_tokens, placement, dim)
    for num_tokens, dim in [(0, 1), (2, 1), (13, 0), (13, -1), (16, 1)]
    for placement in (contiguous, zigzag)
]


def there_and_back(world, num_tokens, placement, dim):
    x = torch.randn(
        3, num_tokens, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).movedim(1, dim)
    own = shard_sequence(x, world, placement, dim).clone().requires_grad_()
    whole = gather_sequence(own, world, placement, dim, num_tokens=num_tokens)
    torch.manual_seed(world.rank)
    cotangent = torch.randn_like(whole)
    (pulled_back,) = torch.autograd.grad(whole, own, cotangent)
    return x, whole.detach(), cotangent, pulled_back


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_gathering_undoes_sharding_and_its_gradient_is_the_sum_over_ranks(world_size):
    by_rank = run(lambda world: [there_and_back(world, *case) for case in CASES], world_size).values
    for (num_tokens, placement, dim), *values in zip(CASES, *by_rank, strict=True):
        total = sum(cotangent for _, _, cotangent, _ in values)
        for rank, (x, whole, _, pulled_back) in enumerate(values):
            assert torch.equal(whole, x)
            rows = [row for segment in placement(num_tokens, world_size, rank) for row in segment]
            expected = total.index_select(dim, torch.tensor(rows, dtype=torch.long))
            torch.testing.assert_close(pulled_back, expected)
