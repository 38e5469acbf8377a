"""Adapters: what is frozen, what is refused, and what rounding leaves after unmerge."""

from functools import partial

import pytest
import torch

from labkit import calc
from labkit.lora import (
    METHODS,
    AdapterJobs,
    adapter_names,
    adapter_parameters,
    add_adapter,
    lora_layers,
    merge,
    prepare,
    unmerge,
    use_adapters,
)
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW

CONFIG = GPTConfig(vocab=31, context=6, num_layers=2, hidden=24, num_heads=4)
ADAMW = partial(AdamW, learning_rate=1e-2)
TOKENS = torch.arange(18).view(3, 6)


def model_with(*names, dtype=torch.float32, **options):
    model = GPT(CONFIG, dtype=dtype)
    for name in names:
        add_adapter(model, name, 3, **options)
    return model


def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained():
    model = model_with("job")
    torch.testing.assert_close(model(TOKENS), GPT(CONFIG)(TOKENS), rtol=0, atol=0)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == adapter_parameters(model, "job").keys()
    assert sum(p.numel() for p in adapter_parameters(model, "job").values()) == 2 * 2 * 3 * 48


def test_numbers_of_parameters_are_those_of_calc():
    config = calc.ModelConfig(layers=2, hidden=24, heads=4, vocab=31, context=6, biases=False)
    for targets in (("query", "value"), ("query", "key", "value", "out", "up", "down")):
        model = model_with("job", targets=targets)
        counted = sum(p.numel() for p in adapter_parameters(model, "job").values())
        assert counted == calc.lora_parameters(config, 3, targets)


def test_a_second_adapter_leaves_the_first_trained_and_has_its_own_targets():
    model = model_with("p")
    add_adapter(model, "c", 2, targets=("query", "down"))
    assert adapter_names(model) == ["p", "c"]
    assert all(p.requires_grad for p in adapter_parameters(model, "p").values())
    assert sorted(lora_layers(model)["blocks.0.attention.query"].adapters) == ["c", "p"]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter_parameters(model, "p").values():
            parameter.normal_(generator=generator)
        use_adapters(model, "p")
        of_p = model(TOKENS)
        use_adapters(model, ["p", "c", None])
        mixed = model(TOKENS)
        base = GPT(CONFIG)(TOKENS)
    torch.testing.assert_close(mixed[0], of_p[0])
    torch.testing.assert_close(mixed[1:], base[1:])
    assert not torch.allclose(mixed[0], base[0])


def test_unmerging_in_16_bits_does_not_give_back_the_weight():
    model = model_with("job", dtype=torch.bfloat16)
    layer = lora_layers(model)["blocks.0.attention.query"]
    with torch.no_grad():
        layer.adapters["job"].b.normal_(generator=torch.Generator().manual_seed(0))
    before = layer.base.weight.clone()
    merge(model, "job")
    unmerge(model)
    assert not torch.equal(layer.base.weight, before)
    torch.testing.assert_close(layer.base.weight, before, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: add_adapter(m, "p", 3), ValueError, "taken are p"),
        (lambda m: add_adapter(m, "a.b", 3), ValueError, "'a.b'"),
        (lambda m: add_adapter(m, "c", 0), ValueError, "rank=0"),
        (lambda m: add_adapter(m, "c", 3, alpha=0), ValueError, "alpha"),
        (lambda m: add_adapter(m, "c", 3, targets=("gate",)), ValueError, "targets gate"),
        (lambda m: add_adapter(m, "c", 3, targets=()), ValueError, "targets"),
        (lambda m: use_adapters(m, ["p", "x"]), ValueError, "'x'"),
        (lambda m: adapter_parameters(m, "x"), ValueError, "'x'"),
        (lambda m: (use_adapters(m, ["p"]), m(TOKENS)), RuntimeError, "3 rows"),
        (lambda m: merge(m, "x"), ValueError, "'x'"),
        (lambda m: (merge(m, "p"), merge(m, "p")), RuntimeError, "merged already"),
        (lambda m: (merge(m, "p"), use_adapters(m, None)), RuntimeError, "unmerge"),
        (lambda m: (merge(m, "p"), use_adapters(m, ["p"])), RuntimeError, "unmerge"),
        (
            lambda m: AdapterJobs(m, partial(AdamW, learning_rate=1)).step({"x": None}),
            ValueError,
            "x: not a job",
        ),
        (lambda m: AdapterJobs(m, ADAMW).step({}), ValueError, "no job has a batch"),
        (lambda m: prepare(m, "QLoRA"), ValueError, "QLoRA"),
    ],
)
def test_what_cannot_be_done_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(model_with("p"))


def test_a_quantised_base_cannot_be_merged_into():
    config = GPTConfig(vocab=31, context=6, num_layers=1, hidden=32, num_heads=4)
    assert all(
        "job" in adapter_names(prepare(GPT(config), method))
        for method in METHODS
        if method != "full"
    )
    with pytest.raises(TypeError, match="quantised"):
        merge(prepare(GPT(config), "LoRA, int4 base"), "job")
