"""Blocks of attention, merged, against the softmax over all keys; and who computes which block."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from labkit.context_parallel import attend, contiguous, merge, zigzag
from labkit.context_parallel.ring import TILE_TOKENS, attend_backward, blocks, tiles

PLACEMENTS = [contiguous, zigzag]


def random(*shape, scale=1.0, dtype=torch.float64):
    return scale * torch.randn(*shape, dtype=dtype)


def whole(q, k, v, mask=None):
    """Softmax and log-sum-exp over all keys at once, by torch."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.randoms(), st.sampled_from([1, 300]))
def test_blocks_of_keys_in_any_order_are_the_softmax_over_all(sizes, order, scale):
    torch.manual_seed(sum(sizes))
    q, k, v = random(2, 3, 4, scale=scale), random(2, sum(sizes), 4), random(2, sum(sizes), 4)
    parts = [attend(q, *kv) for kv in zip(k.split(sizes, 1), v.split(sizes, 1), strict=True)]
    order.shuffle(parts)
    while len(parts) > 1:  # as a tree: merging is associative
        parts = [*parts[2:], merge(parts[0], parts[1])]
    for found, expected in zip(parts[0], whole(q, k, v), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_beyond_what_exp_can_take(dtype):
    # exp overflows at 89 in float32, at 710 in float64; these scores are about 1e5.
    q, k, v = (random(5, 4, scale=s, dtype=dtype) for s in (300, 300, 1))
    out, lse = merge(attend(q, k[:2], v[:2]), attend(q, k[2:], v[2:]))
    expected, expected_lse = whole(q, k, v)
    assert lse.abs().max() > 1000
    # A score of 1e5 is off by 1e5 eps, and so is the logarithm of a weight.
    tolerance = 1e6 * torch.finfo(dtype).eps
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse, expected_lse)


def test_a_row_without_keys_is_nothing_and_changes_nothing():
    q, k, v = random(3, 4), random(5, 4), random(5, 4)
    nobody = torch.zeros(3, 5, dtype=torch.bool)
    out, lse = attend(q, k, v, nobody)
    assert (out == 0).all() and (lse == -math.inf).all()
    known = attend(q, k, v)
    for merged in (merge(known, (out, lse)), merge((out, lse), known)):
        torch.testing.assert_close(merged, known)
    out, lse = merge((out, lse), (out, lse))
    assert (out == 0).all() and (lse == -math.inf).all()
    gradients = attend_backward(q, k, v, random(3, 4), lse, random(3), nobody)
    assert all((each == 0).all() for each in gradients)


def test_masked_rows_beside_others():
    q, k, v = random(3, 4), random(3, 4), random(3, 4)
    mask = torch.tensor([[True, False, True], [False, False, False], [False, True, True]])
    out, lse = attend(q, k, v, mask)
    expected, expected_lse = whole(q, k, v, mask)
    torch.testing.assert_close(out[[0, 2]], expected[[0, 2]])
    torch.testing.assert_close(lse, expected_lse)
    assert (out[1] == 0).all()


def test_gradients_of_blocks_add_up_to_those_of_autograd():
    q, k, v = (random(2, 5, 4).requires_grad_() for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    out, lse = whole(q, k, v, mask)
    grad = random(2, 5, 4)
    expected = torch.autograd.grad(out, (q, k, v), grad)
    found = [torch.zeros_like(each) for each in expected]
    with torch.no_grad():
        for columns in (slice(0, 2), slice(2, 5)):
            parts = attend_backward(
                q, k[:, columns], v[:, columns], grad, lse, (grad * out).sum(-1), mask[:, columns]
            )
            for total, part in zip(found, parts, strict=True):
                (total if total is found[0] else total[:, columns]).add_(part)
    torch.testing.assert_close(found, list(expected))


def test_arguments_are_left_alone():
    tensors = [random(3, 4) for _ in range(4)]
    copies = [each.clone() for each in tensors]
    q, k, v, grad = tensors
    out, lse = attend(q, k, v)
    attend_backward(q, k, v, grad, lse, (grad * out).sum(-1))
    assert all(map(torch.equal, tensors, copies))


@pytest.mark.parametrize("placement", PLACEMENTS)
@given(num_tokens=st.integers(0, 40), size=st.integers(1, 9))
def test_every_token_is_somewhere_once_and_sizes_are_even(placement, num_tokens, size):
    held = [
        [token for segment in placement(num_tokens, size, rank) for token in segment]
        for rank in range(size)
    ]
    assert sorted(token for tokens in held for token in tokens) == list(range(num_tokens))
    assert all(tokens == sorted(tokens) for tokens in held)
    lengths = [len(tokens) for tokens in held]
    assert max(lengths) - min(lengths) <= 1


def test_zigzag_is_an_early_and_a_late_segment():
    assert [zigzag(16, 4, rank) for rank in (0, 3)] == [
        (range(2), range(14, 16)),
        (range(6, 8), range(8, 10)),
    ]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_tokens", [0, 3, 13, 5 * TILE_TOKENS + 7])
def test_blocks_hold_every_pair_once_and_no_block_is_wholly_masked(placement, causal, num_tokens):
    size = 2
    seen = torch.zeros(num_tokens, num_tokens, dtype=torch.int8)
    for rank in range(size):
        for source in range(size):
            own, others = (placement(num_tokens, size, each) for each in (rank, source))
            for block in blocks(own, others, causal):
                rows, columns = (list(each.positions) for each in block[:2])
                assert len(rows) <= TILE_TOKENS and len(columns) <= TILE_TOKENS
                mask = block.mask_ts(torch.device("cpu"))
                looked_at = torch.ones(len(rows), len(columns), dtype=torch.bool)
                looked_at = looked_at if mask is None else mask
                assert looked_at.any()
                assert block.is_masked != bool(looked_at.all()) or len(rows) == 1
                seen[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] += looked_at
    expected = torch.ones_like(seen)
    assert torch.equal(seen, expected.tril() if causal else expected)


def test_tiles_follow_each_other_in_the_shard():
    found = list(tiles((range(TILE_TOKENS + 1), range(900, 902))))
    assert [(each.where.start, each.where.stop) for each in found] == [
        (0, TILE_TOKENS),
        (TILE_TOKENS, TILE_TOKENS + 1),
        (TILE_TOKENS + 1, TILE_TOKENS + 3),
    ]
    assert found[2].positions == range(900, 902)


def test_the_reference_is_torchs_attention():
    q, k, v = (random(1, 2, 5, 4) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(whole(q, k, v)[0], expected)
