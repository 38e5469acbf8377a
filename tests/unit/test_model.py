"""The GPT: its values against formulas written out here, its shapes, its errors."""

import math

import pytest
import torch

from labkit.model import GPT, Attention, Embedding, GPTConfig, attend, rotate

SMALL = GPTConfig(vocab=11, context=6, num_layers=2, hidden=8, num_heads=2, ffn=12)


def small_gpt(seed: int = 0) -> GPT:
    return GPT(SMALL, seed, dtype=torch.float64)


def test_logits_have_one_row_per_token_and_one_column_per_vocabulary_entry():
    tokens_BT = torch.zeros(3, 5, dtype=torch.int64)
    assert small_gpt()(tokens_BT).shape == (3, 5, 11)


def test_number_of_parameters_follows_the_sizes():
    attention, mlp, norms = 4 * 8 * 8, 2 * 8 * 12, 2 * 8
    expected = 11 * 8 + 6 * 8 + 2 * (attention + mlp + norms) + 8
    assert small_gpt().num_parameters == expected


def test_the_default_ffn_is_four_times_the_hidden_features():
    assert GPTConfig(hidden=48, num_heads=3).ffn_hidden == 192
    assert SMALL.ffn_hidden == 12


def test_the_head_is_the_token_embedding():
    model = small_gpt()
    assert model.head.weight is model.embedding.token.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_seed_decides_every_parameter(dtype):
    one, same, other = (GPT(SMALL, seed, dtype) for seed in (1, 1, 2))
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, same.get_parameter(name))
        if parameter.dim() > 1:
            assert not torch.equal(parameter, other.get_parameter(name))


def test_no_two_weights_of_a_model_are_equal():
    weights = [w.flatten()[:8] for w in small_gpt().parameters() if w.dim() > 1]
    assert len({tuple(w.tolist()) for w in weights}) == len(weights)


def test_float32_is_float64_rounded():
    for single, double in zip(GPT(SMALL).parameters(), small_gpt().parameters(), strict=True):
        assert torch.equal(single, double.float())


def test_building_a_model_leaves_the_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    GPT(SMALL, seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_weights_start_small_and_those_that_end_a_branch_smaller():
    model = GPT(GPTConfig(num_layers=8, hidden=128))
    for layer in (model.embedding.token, model.blocks[7].mlp.up):
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for layer in (model.blocks[0].attention.out, model.blocks[7].mlp.down):
        assert layer.weight.std().item() == pytest.approx(0.02 / math.sqrt(16), rel=0.05)


def test_a_token_does_not_see_those_after_it():
    model, tokens_BT = small_gpt(), torch.arange(12).view(2, 6) % 11
    changed_BT = tokens_BT.clone()
    changed_BT[:, 4:] = 0
    before_BTV, after_BTV = model(tokens_BT), model(changed_BT)
    torch.testing.assert_close(before_BTV[:, :4], after_BTV[:, :4], rtol=0, atol=1e-14)
    assert not torch.allclose(before_BTV[:, 4:], after_BTV[:, 4:], rtol=0, atol=1e-6)


def test_attention_equals_its_formula():
    layer = small_gpt().blocks[0].attention
    x_BTD = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected_BTD = torch.zeros_like(x_BTD)
    for head in range(2):
        rows = slice(4 * head, 4 * head + 4)
        q, k, v = (x_BTD @ w.weight[rows].T for w in (layer.query, layer.key, layer.value))
        scores_BTT = q @ k.transpose(1, 2) / math.sqrt(4)
        scores_BTT = scores_BTT.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
        expected_BTD += scores_BTT.softmax(-1) @ v @ layer.out.weight[:, rows].T
    torch.testing.assert_close(layer(x_BTD), expected_BTD)


def test_attention_over_some_heads_is_a_term_of_the_whole():
    whole = small_gpt().blocks[0].attention
    x_BTD = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total_BTD = torch.zeros_like(x_BTD)
    for rows in (slice(0, 4), slice(4, 8)):
        part = Attention(SMALL)
        for name in ("query", "key", "value"):
            part.get_submodule(name).weight = torch.nn.Parameter(
                whole.get_submodule(name).weight[rows]
            )
        part.out.weight = torch.nn.Parameter(whole.out.weight[:, rows])
        total_BTD += part(x_BTD)
    torch.testing.assert_close(total_BTD, whole(x_BTD))


def test_heads_that_share_a_key_give_what_they_give_with_copies_of_it():
    """Grouped-query attention: the i-th H/G heads read the i-th key and value."""
    torch.manual_seed(0)
    shared = Attention(GPTConfig(hidden=24, num_heads=6, num_kv_heads=2)).double()
    copied = Attention(GPTConfig(hidden=24, num_heads=6)).double()
    copied.load_state_dict(
        shared.state_dict()
        | {
            name: weight.unflatten(0, (2, 4)).repeat_interleave(3, 0).flatten(0, 1)
            for name, weight in shared.state_dict().items()
            if name in ("key.weight", "value.weight")
        }
    )
    assert shared.key.weight.shape == (8, 24)
    x_BTD = torch.randn(2, 5, 24, dtype=torch.float64)
    torch.testing.assert_close(shared(x_BTD), copied(x_BTD))


def test_rotary_positions_turn_a_pair_of_features_as_a_complex_number():
    x_TK = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions_T = torch.tensor([0, 1, 2, 7, 100_000])
    found = torch.complex(*rotate(x_TK, positions_T).chunk(2, -1))
    rates = 10_000.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    expected = torch.complex(*x_TK.chunk(2, -1)) * torch.exp(1j * positions_T[:, None] * rates)
    torch.testing.assert_close(found, expected)


def test_rotary_attention_depends_on_distances_only():
    q, k, v = torch.randn(3, 1, 6, 8, dtype=torch.float64)
    far = torch.arange(6) + 1000
    q_HTK, k_HTK = (rotate(x.unflatten(2, (2, 4)).transpose(1, 2), far) for x in (q, k))
    moved = torch.nn.functional.scaled_dot_product_attention(
        q_HTK, k_HTK, v.unflatten(2, (2, 4)).transpose(1, 2), is_causal=True
    )
    expected = attend(q, k, v, 4, rotary=True)
    torch.testing.assert_close(moved.transpose(1, 2).flatten(2), expected)
    assert not torch.allclose(expected, attend(q, k, v, 4))


def test_rotary_positions_have_no_table_and_no_longest_sequence():
    config = GPTConfig(vocab=11, context=6, num_layers=1, hidden=8, num_heads=2, rotary=True)
    model = GPT(config)
    assert "embedding.position.weight" not in model.state_dict()
    assert config.max_positions is None
    assert model(torch.zeros(1, 50, dtype=torch.int64)).shape == (1, 50, 11)


def test_no_sequences_at_all_give_no_logits():
    assert small_gpt()(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 5, 11)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_layers": 0}, "num_layers=0"),
        ({"ffn": -4}, "ffn=-4"),
        ({"hidden": 64, "num_heads": 6}, "num_heads=6 .*hidden=64.*num_heads=2"),
        ({"num_kv_heads": 3}, "num_kv_heads=3 .*num_heads=4.*num_kv_heads=1"),
        ({"num_kv_heads": 0}, "num_kv_heads=0"),
        ({"hidden": 12, "rotary": True}, "heads have 3"),
    ],
)
def test_sizes_that_make_no_model_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**sizes)


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        (torch.zeros(2, 7).long(), ValueError, r"7 .*context=6.*tokens\[:, :6\]"),
        (torch.tensor([[3, 11]]), ValueError, "token 11"),
        (torch.tensor([[3, -1]]), ValueError, "token -1"),
        (torch.zeros(2, 3), TypeError, r"torch.float32.*tokens.long\(\)"),
        (torch.zeros(2, 3, dtype=torch.uint8), TypeError, r"torch.uint8.*tokens.long\(\)"),
        (torch.zeros(3).long(), ValueError, r"1 dims.*tokens\[None\]"),
    ],
)
def test_tokens_that_cannot_be_looked_up_are_refused(tokens, error, message):
    with pytest.raises(error, match=message):
        Embedding(SMALL)(tokens)
