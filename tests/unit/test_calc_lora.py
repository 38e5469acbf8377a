"""Adapters: counts by target against the paper's and against shapes written out."""

import pytest

from labkit import calc


def test_the_papers_choice_on_gpt3():
    # arXiv:2106.09685, table 4: rank 4 on query and value, 18.9M; and 4.7M for rank 1
    assert calc.lora_parameters("gpt3-175b", 1) == 96 * 2 * (12288 + 12288)
    assert float(calc.lora_parameters("gpt3-175b", 4)) == pytest.approx(18.9e6, rel=0.005)


def test_each_matrix_has_its_own_shape():
    all_seven = ("query", "key", "value", "out", "gate", "up", "down")
    counted = calc.lora_parameters("llama3-8b", 2, all_seven)
    D, key, F = 4096, 8 * 128, 14336
    shapes = {"query": 2 * D, "key": D + key, "value": D + key, "out": 2 * D}
    shapes |= {"gate": D + F, "up": D + F, "down": F + D}
    assert {name: float(counted[name]) for name in all_seven} == {
        name: 32 * 2 * numbers for name, numbers in shapes.items()
    }


def test_matrices_have_the_names_of_hugging_faces_modules_too():
    # ml-explore/mlx-examples, issue 724: rank 128 on all linear layers of an 8B model
    assert calc.lora_parameters("llama3-8b", 128, "all-linear") == 335_544_320
    assert calc.lora_parameters("llama2-7b", 8, "q_proj") == 32 * 8 * (4096 + 4096)


def test_attention_beside_experts_is_dense():
    assert calc.lora_parameters("mixtral-8x7b", 8) == 32 * 8 * ((4096 + 4096) + (4096 + 1024))


def test_what_cannot_be_adapted_is_refused():
    with pytest.raises(ValueError, match="target 'gate'"):
        calc.lora_parameters("gpt2", 8, ["gate"])
    with pytest.raises(ValueError, match="target 'up'"):
        calc.lora_parameters("mixtral-8x7b", 8, ["up"])
    with pytest.raises(ValueError, match="latent"):
        calc.lora_parameters("deepseek-v3", 8)
    with pytest.raises(ValueError, match="rank"):
        calc.lora_parameters("gpt2", 0)
