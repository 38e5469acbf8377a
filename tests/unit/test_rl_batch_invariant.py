"""Tiles and attention: the bits of a row follow from that row alone."""

import pytest
import torch

from labkit.model import GPT, GPTConfig
from labkit.rl import InvariantDecoder, InvariantGPT
from labkit.rl.batch_invariant import Blocks, attention, tiled_product
from labkit.serving import Engine, PagedCache, Request, preempting


def same(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@pytest.mark.parametrize("num_out", [1, 5, 6, 7, 9, 16, 40])
@pytest.mark.parametrize("num_in", [6, 24, 65])
def test_a_row_has_the_same_bits_at_every_place_of_every_batch(num_in, num_out):
    generator = torch.Generator().manual_seed(num_in * num_out)
    x_nD = torch.randn(37, num_in, generator=generator)
    w_FD = torch.randn(num_out, num_in, generator=generator)
    whole = tiled_product(x_nD, w_FD)
    assert torch.allclose(whole, x_nD @ w_FD.t(), atol=1e-4)
    for first, last in ((0, 1), (1, 2), (3, 20), (36, 37), (20, 37)):
        assert same(tiled_product(x_nD[first:last], w_FD), whole[first:last])
    equal_rows = tiled_product(x_nD[:1].expand(33, -1), w_FD)
    assert same(equal_rows, whole[:1].expand(33, -1))


def test_blocks_of_two_ranks_add_up_to_the_bits_of_one():
    generator = torch.Generator().manual_seed(0)
    x_nD, w_FD = (torch.randn(n, 22, generator=generator) for n in (9, 13))
    lengths = [6, 6, 5, 5]
    of_one = tiled_product(x_nD, w_FD, Blocks(1, lengths, 6))
    of_two = [
        tiled_product(x_nD[:, here], w_FD[:, here], Blocks(1, its, 6))
        for here, its in ((slice(0, 12), lengths[:2]), (slice(12, 22), lengths[2:]))
    ]
    assert same(of_one, of_two[0] + of_two[1])
    assert torch.allclose(of_one, x_nD @ w_FD.t(), atol=1e-5)


def test_attention_of_a_query_does_not_depend_on_others_and_on_padding():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(6, 21, 5, generator=generator) for _ in range(3))
    places = torch.arange(21).expand(6, -1)
    whole = attention(q, k, v, places, 23)
    scores = (q @ k.transpose(1, 2) * 5**-0.5).masked_fill(
        places[:1, None] > places[..., None], -1e9
    )
    assert torch.allclose(whole, scores.softmax(-1) @ v, atol=1e-5)
    for pairs, first, last in ((slice(0, 1), 0, 1), (slice(2, 5), 7, 8), (slice(1, 6), 3, 21)):
        part = attention(
            q[pairs, first:last], k[pairs, :last], v[pairs, :last], places[pairs, first:last], 23
        )
        assert same(part, whole[pairs, first:last])
    with pytest.raises(ValueError, match="21 tokens in a sequence, and attention computes 20"):
        attention(q, k, v, places, 20)


def test_it_is_the_labs_gpt_and_its_gradient():
    config = GPTConfig(vocab=19, context=12, num_layers=2, hidden=24, num_heads=4, ffn=26)
    tokens = torch.randint(0, 19, (3, 11), generator=torch.Generator().manual_seed(0))
    tiles, plain = InvariantGPT(config), GPT(config)
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, dict(tiles.named_parameters())[name])
    for model in (tiles, plain):
        model(tokens).square().sum().backward()
    for mine, other in zip(tiles.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, atol=1e-5)


def test_an_engine_of_it_gives_the_same_tokens_as_the_whole_model_with_rotary_positions():
    config = GPTConfig(vocab=19, context=20, num_layers=2, hidden=24, num_heads=2, rotary=True)
    model = InvariantGPT(config, num_experts=3)
    decoder = InvariantDecoder(model)
    engine = Engine(decoder, PagedCache(decoder.cache_config, 20, 4), preempting)
    prompts = [[1, 2, 3], [7], [1, 2, 3, 4, 5, 6]]
    answers = engine.generate([Request(prompt, 9) for prompt in prompts])
    for prompt, found in zip(prompts, answers, strict=True):
        tokens = list(prompt)
        for _ in range(9):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        assert tokens[len(prompt) :] == found


def test_sizes_that_ranks_cannot_share_are_refused():
    with pytest.raises(ValueError, match="1 ranks, 4 heads and 2 key-value heads"):
        InvariantGPT(GPTConfig(num_heads=4, num_kv_heads=2))
