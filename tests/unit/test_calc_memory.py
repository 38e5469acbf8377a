"""Memory by formula: recipes, model states, activations, caches."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import calc

GPT2 = calc.MODELS["gpt2"]


@pytest.mark.parametrize(
    ("recipe", "bytes_per_parameter", "sharded"),
    [
        ("zero_paper", 16, lambda d: 4 + 12 / d),
        ("megatron_bf16", 18, lambda d: 6 + 12 / d),
        ("amp", 16, lambda d: 8 + 8 / d),
        ("fp32", 16, lambda d: 8 + 8 / d),
        ("pure_bf16", 8, lambda d: 4 + 4 / d),
        ("adam_8bit", 6.03125, lambda d: 4 + 2.03125 / d),
        ("sgd", 12, lambda d: 8 + 4 / d),
        ("sgd_plain", 8, lambda d: 8),
    ],
)
def test_a_recipe_has_its_bytes_whole_and_sharded(recipe, bytes_per_parameter, sharded):
    assert calc.RECIPES[recipe].bytes_per_parameter == bytes_per_parameter
    for d in (1, 2, 64):
        states = calc.model_state_bytes(64e6, recipe, zero=1, dp=d)
        assert float(states) == pytest.approx(64e6 * sharded(d), rel=1e-12)


def test_each_level_shards_one_kind_more():
    whole = calc.model_state_bytes(8e6, "zero_paper")
    kinds = ["moments", "gradients", "parameters"]
    for zero in (1, 2, 3):
        states = calc.model_state_bytes(8e6, "zero_paper", zero=zero, dp=8)
        is_sharded = [states[kind] == whole[kind] / 8 for kind in kinds]
        assert is_sharded == [n < zero for n in range(3)]


def test_the_largest_shard_counts_where_ranks_do_not_divide():
    assert calc.model_state_bytes(10, "sgd_plain", zero=3, dp=4) == 3 * 8
    assert calc.offload_traffic_bytes(10, "zero_paper", dp=4) == 3 * (2 + 2)
    # Gradients that the CPU adds up go down once in each of five microbatches.
    assert calc.offload_traffic_bytes(10, "zero_paper", dp=4, microbatches=5) == 3 * (5 * 2 + 2)


def test_parameters_may_come_as_a_result_and_nothing_else_may():
    assert calc.model_state_bytes(calc.num_parameters("gpt2"), "fp32") == 16 * 124_439_808
    with pytest.raises(TypeError, match="parameters"):
        calc.model_state_bytes(calc.amount("5 GB"), "fp32")


def test_llama_7b_needs_84_or_112_gigabytes_by_what_is_kept():
    # Both figures circulate: without a float32 master copy, and with one.
    without = dataclasses.replace(calc.RECIPES["zero_paper"], name="no master", master_bytes=0)
    assert calc.model_state_bytes(7e9, without).to("GB") == 84
    assert calc.model_state_bytes(7e9, "zero_paper").to("GB") == 112


@given(
    layers=st.integers(1, 8),
    heads=st.integers(1, 8),
    features=st.integers(1, 16),
    length=st.sampled_from([8, 64, 256]),
    microbatch=st.integers(1, 4),
    t=st.sampled_from([1, 2, 4, 8]),
)
def test_activations_are_korthikantis_closed_form(layers, heads, features, length, microbatch, t):
    heads *= t
    h = heads * features
    config = calc.ModelConfig(layers=layers, hidden=h, heads=heads, vocab=100, context=length)
    sbhL = length * microbatch * h * layers
    scores = 5 * heads * length / h
    plain = calc.activation_bytes(config, microbatch, tp=t)
    assert float(plain) == pytest.approx(sbhL * (10 + (24 + scores) / t))
    parallel = calc.activation_bytes(config, microbatch, tp=t, sequence_parallel=True)
    assert float(parallel) == pytest.approx(sbhL * (34 + scores) / t)
    selective = calc.activation_bytes(config, microbatch, tp=t, recompute="selective")
    assert float(selective) == pytest.approx(sbhL * (10 + 24 / t))
    assert calc.activation_bytes(config, microbatch, tp=t, recompute="full") == 2 * sbhL


def test_scores_have_the_size_of_their_numbers_and_masks_one_byte():
    kept = calc.activation_bytes(GPT2, 1, itemsize=4)
    assert kept["attention scores"] == 12 * 1024 * 12 * 1024 * (4 + 1 + 4)
    assert kept["dropout masks"] == 12 * 1024 * 2 * 768


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("dropout", [True, False], ids=["dropout", "no dropout"])
@pytest.mark.parametrize("flash", [True, False], ids=["flash", "scores"])
@pytest.mark.parametrize(("t", "is_parallel"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("name", ["gpt2", "llama3-8b"])
def test_formula_and_substitution_are_what_was_calculated_and_every_letter_is_said(
    name, t, is_parallel, flash, dropout, recompute
):
    config = calc.MODELS[name]
    how = {"recompute": recompute, "flash": flash, "dropout": dropout, "itemsize": 4}
    kept = calc.activation_bytes(config, 3, t, is_parallel, cp=2, **how)
    letters = {
        "L": config.layers, "T": 3 * config.context // 2, "b": 4, "D": config.hidden,
        "H": config.heads, "G": config.num_kv_heads, "K": config.features_per_head,
        "F": config.mlp_features, "s": config.context, "t": t,
    }  # fmt: skip
    formula, said = kept.formula.split("; ")
    used = set(re.findall("[A-Za-z]", formula))
    assert {each.split()[0] for each in said.split(", ")} == used
    as_python = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula)
    assert eval(as_python, letters) == float(kept)
    assert eval(kept.substitution.removesuffix(" B").replace(",", "")) == float(kept)


def test_flash_attention_keeps_no_scores_but_one_number_per_row_and_head():
    plain, flash = (calc.activation_bytes(GPT2, 1, flash=flash) for flash in (False, True))
    assert "attention scores" not in flash.parts
    assert flash["attention statistics"] == 12 * 1024 * 4 * 12
    assert plain - plain["attention scores"] + flash["attention statistics"] == flash


def test_context_parallelism_divides_tokens_and_leaves_each_row_its_length():
    whole, shared = (calc.activation_bytes("llama3-8b", 1, cp=cp) for cp in (1, 8))
    assert whole / shared == pytest.approx(8)


def test_fewer_key_value_heads_keep_fewer_keys_and_values():
    shared = dataclasses.replace(GPT2, kv_heads=3)
    whole = calc.activation_bytes(GPT2, 1)["query, key, value"]
    assert calc.activation_bytes(shared, 1)["query, key, value"] / whole == pytest.approx(1.5 / 3)


def test_the_logits_of_a_large_vocabulary_outweigh_layers():
    logits = calc.logits_bytes("llama3-8b", 1)
    assert logits == 8192 * 128_256 * (2 + 4)
    layer = calc.activation_bytes("llama3-8b", 1, flash=True, dropout=False) / 32
    assert logits > 4 * layer
    assert calc.logits_bytes("llama3-8b", 1, tp=8) == logits / 8
    largest = -(-50257 // 5)
    assert calc.logits_bytes("gpt2", 1, tp=5, sequence=1) == largest * (2 + 4)


def test_of_each_logit_backward_makes_two_gradients_in_float32():
    gradients = calc.loss_gradient_bytes("llama3-8b", 1)
    assert gradients == 8192 * 128_256 * (4 + 4)
    assert gradients["gradient of the logits"] == gradients / 2
    assert calc.loss_gradient_bytes("llama3-8b", 1, tp=8) == gradients / 8


def test_context_parallelism_cuts_the_heads_tokens_too():
    for of_the_head in (calc.logits_bytes, calc.loss_gradient_bytes, calc.head_input_bytes):
        assert of_the_head("gpt2", 2, cp=4) == of_the_head("gpt2", 2) / 4
        with pytest.raises(ValueError, match="cp=3 .* 1024 tokens"):
            of_the_head("gpt2", 2, cp=3)


def test_sequence_parallelism_cuts_the_inputs_of_the_head_and_tensor_parallelism_does_not():
    whole = calc.head_input_bytes("gpt2", 2)
    assert whole == 2 * 2 * 1024 * 768 * 2
    assert calc.head_input_bytes("gpt2", 2, tp=4) == whole
    assert calc.head_input_bytes("gpt2", 2, tp=4, sequence_parallel=True) == whole / 4


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: calc.model_state_bytes(1e9, "fp31"), "fp31.* zero_paper"),
        (lambda: calc.model_state_bytes(1e9, "fp32", zero=4), "zero=4"),
        (lambda: calc.model_state_bytes(1e9, "fp32", zero=True), "zero=True"),
        (lambda: calc.model_state_bytes(-1, "fp32"), "num_params=-1"),
        (lambda: calc.model_state_bytes(float("nan"), "fp32"), "num_params=nan"),
        (lambda: calc.model_state_bytes(1e9, "fp32", zero=1, dp=0), "dp=0"),
        (lambda: calc.activation_bytes("gpt2", 1, tp=5), "tp=5 .*; give 1, 2, 3, 4, 6 or 12$"),
        (
            lambda: calc.activation_bytes(dataclasses.replace(GPT2, ffn=100), 1, tp=6),
            "tp=6 .* 100 features .*; give 1, 2 or 4$",
        ),
        (lambda: calc.activation_bytes("gpt2", 1, recompute="some"), "recompute='some'"),
        (lambda: calc.activation_bytes("gpt2", 1, cp=3), "^cp=3 .* 1024 tokens .*sequence=1023"),
        (lambda: calc.activation_bytes("gpt2", 1, 2, True, cp=3), "cp=3 and tp=2 .* multiple of 6"),
        (
            lambda: calc.activation_bytes("gpt2", 1, tp=4, sequence_parallel=True, sequence=6),
            "^tp=4 .* 6 tokens .*sequence=4",
        ),
        (lambda: calc.activation_bytes("llama3-8b", 1, tp=7), "tp=7 .*heads; give 1, "),
        (lambda: calc.activation_bytes("gpt2", 1, cp=1.5), "cp=1.5"),
        (lambda: calc.logits_bytes("gpt2", 1, loss_itemsize=0), "^loss_itemsize=0"),
        (lambda: calc.activation_bytes("mixtral-8x7b", 1), "routing"),
        (lambda: calc.num_parameters("gpt5"), "gpt5.* gpt2, "),
        (lambda: calc.kv_cache_bytes_per_token("gpt2", 0), "itemsize=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"layers": 0}, "layers=0"),
        ({"heads": 5}, "heads=5 .*hidden=768.*heads=4"),
        ({"kv_heads": 5}, "kv_heads=5 .*heads=12"),
        ({"num_experts": 8}, "top_k=0 of num_experts=8"),
        ({"num_experts": 8, "top_k": 9}, "top_k=9 of num_experts=8"),
        ({"top_k": 2}, "need num_experts"),
        ({"expert_ffn": 64}, "need num_experts"),
        ({"q_lora_rank": 64}, "need kv_lora_rank"),
        ({"kv_lora_rank": 64, "rope_head_dim": 8, "value_head_dim": 8}, "biases=False"),
        ({"num_experts": 8, "top_k": 2, "dense_layers": 13}, "dense_layers=13 exceed layers=12"),
        ({"kv_lora_rank": 64}, "rope_head_dim"),
    ],
)
def test_a_configuration_that_no_model_has_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(GPT2, **wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda: calc.model_state_bytes("7e9", "fp32"),
        lambda: calc.model_state_bytes(True, "fp32"),
        lambda: calc.model_state_bytes(calc.amount("7 GB"), "fp32"),
        lambda: calc.step_traffic_bytes("ddp", calc.amount("7 GB"), 8),
        lambda: calc.step_traffic_bytes("ddp", "7e9", 8),
        lambda: calc.training_flops(calc.amount("7 GB"), 1e9),
        lambda: calc.training_days(1e9, None, 8, 1e12),
    ],
)
def test_a_number_of_parameters_is_no_text_and_no_amount_of_something_else(call):
    with pytest.raises(TypeError, match="num_params="):
        call()


def test_ranks_of_tensor_parallelism_cut_tokens_only_with_sequence_parallelism():
    assert calc.activation_bytes("gpt2", 1, tp=4, sequence=6) > 0
    assert calc.logits_bytes("gpt2", 1, tp=12) > 0


OF_A_SEQUENCE = {
    "activation_bytes": lambda name, length: calc.activation_bytes(name, 1, sequence=length),
    "footprint": lambda name, length: calc.footprint(
        calc.TrainingSetup(model=name, sequence=length)
    ),
    "flops_per_token": lambda name, length: calc.flops_per_token(name, sequence=length),
    "head_input_bytes": lambda name, length: calc.head_input_bytes(name, 1, sequence=length),
    "logits_bytes": lambda name, length: calc.logits_bytes(name, 1, sequence=length),
    "loss_gradient_bytes": lambda name, length: calc.loss_gradient_bytes(name, 1, sequence=length),
}


@pytest.mark.parametrize("calculated", OF_A_SEQUENCE.values(), ids=OF_A_SEQUENCE)
def test_no_sequence_is_longer_than_its_learned_positions(calculated):
    said = "sequence=1025: the model has learned 1024 positions, .*; give 1024 or fewer, or a Mode"
    with pytest.raises(ValueError, match=said):
        calculated("gpt2", 1025)
    assert calculated("gpt2", 1024) == calculated("gpt2", None)
    assert calculated("llama2-7b", 8192) > calculated("llama2-7b", 4096), "rotations go on"


def test_logits_are_those_of_any_model():
    assert calc.logits_bytes("mixtral-8x7b", 1, sequence=2) == 2 * 32000 * (2 + 4)


def test_a_recipe_may_keep_nothing_and_its_moments_are_a_tuple():
    nothing = calc.Recipe(name="nothing", parameter_bytes=0, gradient_bytes=0)
    assert calc.model_state_bytes(1e9, nothing) == 0
    with pytest.raises(TypeError, match="moment_bytes=4"):
        calc.Recipe(name="one", parameter_bytes=2, gradient_bytes=2, moment_bytes=4)
    with pytest.raises(ValueError, match="gradient_bytes=-2"):
        calc.Recipe(name="less", parameter_bytes=2, gradient_bytes=-2)
