"""Weights of 8 and 4 bits: how wrong each may be, how many bytes they take, and training for it."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Decoder,
    Engine,
    PagedCache,
    Request,
    compare_quantized_training,
    continuous,
    logits_error,
    quantize,
    weight_bytes,
)
from labkit.serving.quantized import (
    FakeQuantize,
    fake_quantize,
    from_codes,
    pack,
    rounded,
    to_codes,
    unpack,
)
from labkit.train import TrainConfig

CONFIG = GPTConfig(hidden=32, num_heads=4, num_kv_heads=2)
MODEL = GPT(CONFIG)
TOKENS = torch.randint(0, 256, (4, 64), generator=torch.Generator().manual_seed(0))


@given(
    st.integers(2, 8),
    st.integers(0, 2**31),
    st.sampled_from([1e-3, 1.0, 1e6]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_each_weight_is_wrong_by_at_most_half_a_step(bits, seed, size, dtype):
    """In float64, where the difference is exact. The quotient's own rounding is left room for."""
    generator = torch.Generator().manual_seed(seed)
    weight_OI = (torch.randn(8, 6, generator=generator) * size).to(dtype)
    weight_OI[:2] = torch.tensor([[0.0], [1e-9]])
    codes_OI, scale_O1 = to_codes(weight_OI, bits)
    assert codes_OI.abs().max() <= 2 ** (bits - 1) - 1
    assert scale_O1[:2].tolist() == [[2**-24]] * 2  # never 0, which cannot be divided by
    assert codes_OI[2:].abs().amax(1).tolist() == [2 ** (bits - 1) - 1] * 6
    error_OI = (from_codes(codes_OI, scale_O1, torch.float64) - weight_OI.double()).abs()
    assert (error_OI <= scale_O1.double() / 2 * (1 + 2**-22)).all()
    again = to_codes(from_codes(codes_OI, scale_O1, torch.float32), bits)
    assert torch.equal(again[0], codes_OI)


def test_two_codes_of_4_bits_fit_in_a_byte():
    pairs = torch.cartesian_prod(*[torch.arange(-7, 8, dtype=torch.int8)] * 2)
    packed = pack(pairs.flatten()[None])
    assert (packed.dtype, packed.shape) == (torch.uint8, (1, 225))
    assert packed.unique().numel() == 225
    assert torch.equal(unpack(packed), pairs.flatten()[None])


def test_a_group_has_a_scale_of_its_own():
    weight_OI = torch.tensor([[7.0, 1.4, 0.7, 0.1], [0.0, 0.0, 14.0, -3.0]])
    assert rounded(weight_OI, 4).tolist() == [[7, 1, 1, 0], [0, 0, 14, -4]]
    by_group = rounded(weight_OI, 4, 2)
    assert by_group[0, :2].tolist() == [7, 1]
    assert by_group[0, 2:].tolist() == pytest.approx([0.7, 0.1], rel=2**-8)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", [None, 16])
def test_a_quantized_model_computes_with_rounded_weights(bits, group):
    quantized, expected = quantize(MODEL, bits, group), deepcopy(MODEL)
    fake_quantize(expected, bits, group)
    torch.testing.assert_close(quantized(TOKENS), expected(TOKENS))
    requests = [Request([1, 2, i], 5) for i in range(3)]
    answers = [
        Engine(Decoder(model), PagedCache(CONFIG, 9), continuous).generate(requests)
        for model in (quantized, expected)
    ]
    assert answers[0] == answers[1]
    assert isinstance(MODEL.blocks[0].mlp.up, torch.nn.Linear)  # the given one is as before


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 16)])
def test_bytes_are_those_of_codes_scales_and_what_is_left_alone(bits, group):
    shapes = [p.shape for p in MODEL.blocks.parameters() if p.dim() == 2]
    weights = sum(outputs * inputs for outputs, inputs in shapes)
    scales = sum(outputs * inputs // (group or inputs) for outputs, inputs in shapes)
    found = weight_bytes(quantize(MODEL, bits, group))
    assert found == 4 * (MODEL.num_parameters - weights) + weights * bits // 8 + 2 * scales
    assert weight_bytes(MODEL) == 4 * MODEL.num_parameters


def test_the_error_of_logits_falls_with_bits_and_with_smaller_groups():
    errors = [
        logits_error(MODEL, quantize(MODEL, bits, group), TOKENS)
        for bits, group in [(4, None), (4, 8), (8, None), (8, 8)]
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 0.2
    assert errors[2] < 0.02
    assert logits_error(MODEL, MODEL, TOKENS) == 0


@pytest.mark.parametrize(
    ("bits", "group", "message"),
    [
        (3, None, "bits=3: give 8, or 4"),
        (4, 24, r"group=24 does not divide the 32 inputs.*\[1, 2, 4, 8, 16, 32\]"),
        (4, 0, "group=0"),
    ],
)
def test_what_cannot_be_quantized_is_refused(bits, group, message):
    with pytest.raises(ValueError, match=message):
        quantize(MODEL, bits, group)


def test_the_gradient_goes_straight_through_the_rounding():
    weight_OI = torch.randn(3, 4, requires_grad=True)
    x_BI = torch.randn(5, 4)
    (x_BI @ FakeQuantize(2)(weight_OI).T).square().sum().backward()
    rounded_OI = rounded(weight_OI.detach(), 2).requires_grad_()
    (x_BI @ rounded_OI.T).square().sum().backward()
    torch.testing.assert_close(weight_OI.grad, rounded_OI.grad)


def test_training_with_rounded_weights_wins_back_what_2_bits_lose():
    losses = compare_quantized_training(GPTConfig(), TrainConfig(num_steps=120), 2)
    assert losses.post_training > losses.exact + 0.08
    assert losses.aware < losses.exact + 0.03
