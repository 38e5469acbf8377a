"""Which rank has which heads: every head once, and its keys and values with it."""

import pytest
import torch

from labkit.tensor_parallel import HeadShares, Sharding, even_sharding, head_choices

SHAPES = [(H, G) for H in (1, 2, 6, 8, 12) for G in range(1, H + 1) if H % G == 0]


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), SHAPES)
def test_every_head_is_on_one_rank_together_with_the_keys_it_reads(num_heads, num_kv_heads):
    for num_ranks in head_choices(num_heads, num_kv_heads):
        shares = HeadShares(num_heads, num_kv_heads, num_ranks)
        dealt = [head for rank in range(num_ranks) for head in shares.queries(rank)]
        assert dealt == list(range(num_heads))
        for rank in range(num_ranks):
            needed = {head * num_kv_heads // num_heads for head in shares.queries(rank)}
            assert set(shares.keys(rank)) == needed
            # torch shares keys evenly among the heads that a call sees
            assert len(shares.queries(rank)) % len(shares.keys(rank)) == 0


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), SHAPES)
def test_copies_are_the_ranks_with_the_same_keys(num_heads, num_kv_heads):
    for num_ranks in head_choices(num_heads, num_kv_heads):
        shares = HeadShares(num_heads, num_kv_heads, num_ranks)
        for one in range(num_ranks):
            same = [r for r in range(num_ranks) if shares.keys(r) == shares.keys(one)]
            assert same == [r for r in range(num_ranks) if shares.copies(r) == shares.copies(one)]
            assert len(same) == shares.num_copies


def test_llama_70b_has_a_key_value_head_for_each_of_8_ranks_and_copies_on_16():
    assert HeadShares(64, 8, 8).num_copies == 1
    assert HeadShares(64, 8, 16).num_copies == 2
    assert head_choices(64, 8) == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4, 4, 3), "3 ranks .* 4 heads .*: 1, 2, 4"),
        ((12, 2, 3), "2 key-value heads .*: 1, 2, 4, 6, 12"),
        ((12, 4, 6), "4 key-value heads .*: 1, 2, 4, 12"),
    ],
)
def test_uneven_heads_are_refused_with_the_choices(shape, words):
    with pytest.raises(ValueError, match=words):
        HeadShares(*shape)


@pytest.mark.parametrize("length", [0, 1, 3, 7, 8])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_a_dim_is_cut_as_tensor_split_does(length, num_ranks):
    whole = torch.arange(length * 2).view(2, length)
    sharding = even_sharding(length, 1, num_ranks)
    for rank, part in enumerate(whole.tensor_split(num_ranks, 1)):
        assert torch.equal(sharding.share(whole, rank), part)
        assert sharding.full_shape(part) == whole.shape


def test_a_share_is_a_copy_and_frozen_as_the_whole_is():
    whole = torch.nn.Parameter(torch.zeros(4, 2), requires_grad=False)
    part = even_sharding(4, 0, 2).parameter(whole, 1)
    part.fill_(1.0)
    assert whole.sum() == 0 and not part.requires_grad
    assert Sharding().parameter(torch.zeros(2), 0).data_ptr() != whole.data_ptr()
