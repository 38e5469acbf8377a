"""Published figures, and those that can be counted: calc reproduces every row, with its source.

tests/data/ground_truth.csv holds them, with what is to be said of a row where the source is not to
be taken at its word. A row that nothing computes fails, and so does a computation without a row.
"""

import csv
from decimal import Decimal
from pathlib import Path

import pytest

from labkit import calc
from labkit.model import GPT, GPTConfig

ROWS = {
    row["id"]: row
    for row in csv.DictReader((Path(__file__).parents[1] / "data/ground_truth.csv").open())
}


def states(num, zero, dp=1):
    return calc.model_state_bytes(num, "zero_paper", zero=zero, dp=dp).to("GB")


def bubble(stages, microbatches, schedule="1f1b"):
    return calc.bubble_fraction(stages, microbatches, schedule).to("%")


def of_22b(**how):
    return calc.activation_bytes("korthikanti-22b", microbatch=4, tp=8, sequence=2048, **how).to(
        "GiB"
    )


def palms_mfu():
    palm = calc.ModelConfig(
        layers=118,
        hidden=18432,
        heads=48,
        head_dim=256,
        vocab=256_000,
        context=2048,
        learned_positions=False,
    )
    scores = calc.flops_per_token(palm, sequence=2048)["attention"]
    # The paper's own count of parameters: its layers are parallel, and share keys and values.
    return calc.mfu(238.3e3, 6 * 540.35e9 + float(scores), 6144, 275e12).to("%")


def latencies():
    link = {"alpha": 5e-6, "beta": 1 / 360e9}
    whole, part = (calc.collective("all_reduce", "ring", 8, size) for size in (1e9, 1e7))
    return [1e3 * whole.seconds(**link), 1e3 * 100 * part.seconds(**link)]


def zero_bubble_against_1f1b():
    shares = [calc.bubble_fraction(4, 8, s, relative_to="ideal") for s in ("zb_h1", "1f1b")]
    return shares[0] / shares[1]


# id -> the number, or numbers, in the row's unit
COMPUTED = {
    "zero-7.5b-dp1": lambda: states(7.5e9, 0),
    "zero-7.5b-dp64-1": lambda: states(7.5e9, 1, 64),
    "zero-7.5b-dp64-2": lambda: states(7.5e9, 2, 64),
    "zero-7.5b-dp64-3": lambda: states(7.5e9, 3, 64),
    "zero-7.5b-dp16-1": lambda: states(7.5e9, 1, 16),
    "zero-7.5b-dp4-2": lambda: states(7.5e9, 2, 4),
    "zero-1t-dp1024-3": lambda: states(1e12, 3, 1024),
    "recipe-megatron-bf16": lambda: calc.RECIPES["megatron_bf16"].bytes_per_parameter,
    "recipe-fp32": lambda: calc.RECIPES["fp32"].bytes_per_parameter,
    "params-gpt2": lambda: calc.num_parameters("gpt2"),
    "params-gpt3-175b": lambda: calc.num_parameters("gpt3-175b"),
    "params-llama1-7b": lambda: calc.num_parameters("llama1-7b"),
    "params-llama2-70b": lambda: calc.num_parameters("llama2-70b"),
    "params-llama3-8b": lambda: calc.num_parameters("llama3-8b"),
    "params-mixtral-8x7b": lambda: calc.num_parameters("mixtral-8x7b"),
    "active-mixtral-8x7b": lambda: calc.active_parameters("mixtral-8x7b"),
    "narayanan-1.7b": lambda: calc.num_parameters("narayanan-1.7b"),
    "narayanan-145b": lambda: calc.num_parameters("narayanan-145b"),
    "narayanan-1t": lambda: calc.num_parameters("narayanan-1t"),
    "act-22b-none": of_22b,
    "act-22b-sp-selective": lambda: of_22b(sequence_parallel=True, recompute="selective"),
    "bubble-4-4": lambda: bubble(4, 4),
    "bubble-8-16": lambda: bubble(8, 16),
    "bubble-10-4": lambda: bubble(10, 4),
    "inflight-1f1b": lambda: calc.in_flight_microbatches(4, 8, "1f1b"),
    "inflight-gpipe": lambda: calc.in_flight_microbatches(4, 8, "gpipe"),
    "flops-gpt3": lambda: calc.training_flops(174.6e9, 300e9),
    "mfu-palm": palms_mfu,
    "days-175b": lambda: calc.training_days(300e9, 175e9, 1024, 140e12, "full").to("days"),
    "kv-llama2-7b": lambda: calc.kv_cache_bytes_per_token("llama2-7b"),
    "kv-llama3-8b": lambda: calc.kv_cache_bytes_per_token("llama3-8b"),
    "mtbf-llama3": lambda: calc.mean_time_between_interruptions(419, 54 * 24).to("h"),
    "young": lambda: calc.checkpoint_interval(60, 3.09 * 3600, "young").to("min"),
    "ring-8": lambda: calc.collective("all_reduce", "ring", 8, 8000).sent_bytes / 8000,
    "latency-100": latencies,
    "ddp-volume-zero": lambda: [
        calc.step_traffic_volume(s) for s in ("ddp", "zero1", "zero2", "zero3")
    ],
    "zb-h1-bubble": zero_bubble_against_1f1b,
}


def test_every_row_is_computed_and_every_computation_has_its_row():
    assert set(COMPUTED) == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_published_figure_is_reproduced(name):
    row, computed = ROWS[name], COMPUTED[name]()
    numbers = [float(each) for each in (computed if isinstance(computed, list) else [computed])]
    expected = [float(each) for each in row["expected"].split()]
    assert numbers == pytest.approx(expected, **tolerance(row)), row["source"]


def tolerance(row):
    """As keywords of approx: exact (rounding of floats apart), relative, in the row's unit, or as
    many digits as are printed: half a unit of the last one.
    """
    text, expected = row["tolerance"], row["expected"]
    if text == "exact":
        return {"rel": 1e-12}
    if text.endswith("digits"):
        last = Decimal(expected).adjusted() - int(text.split()[0]) + 1
        return {"abs": 0.5 * 10.0**last, "rel": 0}
    if text.endswith("%"):
        return {"rel": float(text[:-1]) / 100}
    return {"abs": float(text.split()[0]), "rel": 0}


# Further figures, each from the released weights or the model's own paper.
RELEASED = {
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama1-13b": 13_015_864_320,
    "llama1-33b": 32_528_943_616,
    "llama1-65b": 65_285_660_672,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "qwen2.5-7b": 7_615_616_512,
    "deepseek-v3": 671_026_419_200,
}


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_model_has_as_many_parameters(name):
    assert calc.num_parameters(name) == RELEASED[name]


# Context lengths of most of the pre-training, by each paper; configuration files have larger ones.
PRE_TRAINED_WITH = {"qwen2.5-7b": 4096, "deepseek-v3": 4096, "llama3-405b": 8192}


@pytest.mark.parametrize("name", PRE_TRAINED_WITH)
def test_the_context_is_that_of_most_of_the_pre_training(name):
    assert calc.MODELS[name].context == PRE_TRAINED_WITH[name]
    assert calc.flops_per_token(name)["parameters"] > calc.flops_per_token(name)["attention"]


def test_a_preset_bears_the_name_of_the_paper_in_whose_table_it_stands():
    narayanan = {name for name in calc.MODELS if name.startswith("narayanan")}
    assert narayanan == {"narayanan-1.7b", "narayanan-145b", "narayanan-1t"}
    assert calc.num_parameters("korthikanti-22b").to("B") == pytest.approx(22, abs=0.5)


def test_deepseek_v3_sends_a_token_through_37_billion_and_keeps_70_kilobytes_of_it():
    assert calc.active_parameters("deepseek-v3").to("B") == pytest.approx(37.5, rel=2e-3)
    assert calc.kv_cache_bytes_per_token("deepseek-v3") == 61 * (512 + 64) * 2 == 70_272


def test_zeros_savings_are_limits_for_many_ranks():
    def saving(zero, dp):
        return states(1e9, 0) / states(1e9, zero, dp)

    assert [saving(1, 8), saving(2, 8)] == pytest.approx([2.91, 4.27], rel=2e-3)
    assert [saving(1, 64), saving(2, 64)] == pytest.approx([3.82, 7.21], rel=2e-3)
    assert [saving(1, 10**6), saving(2, 10**6)] == pytest.approx([4, 8], rel=1e-3)


def test_a_published_bubble_that_is_wrong_is_another_schedules():
    # "GPipe, 10 stages, 4 microbatches: (p-1)/(2m+p-1) = 53%" is said of GPipe; the 2 is the two
    # virtual stages of an interleaved schedule. GPipe's is 69.2%.
    p, m, v = 10, 10, 2
    interleaved = calc.bubble_fraction(p, m, "interleaved", virtual=v)
    assert interleaved == (p - 1) / (v * m + p - 1)
    assert calc.bubble_fraction(10, 4, "gpipe").to("%") == pytest.approx(69.2, abs=0.05)


@pytest.mark.parametrize("sizes", [{}, {"num_layers": 3, "hidden": 36, "num_heads": 6, "ffn": 50}])
def test_the_labs_own_gpt_has_as_many_parameters_as_calc_says(sizes):
    gpt = GPT(GPTConfig(**sizes))
    config = calc.ModelConfig(
        layers=gpt.config.num_layers,
        hidden=gpt.config.hidden,
        heads=gpt.config.num_heads,
        ffn=gpt.config.ffn,
        vocab=gpt.config.vocab,
        context=gpt.config.context,
        biases=False,
    )
    assert calc.num_parameters(config) == gpt.num_parameters
