"""Published numbers of single trainings and servers, each by one call of calc."""

from dataclasses import replace
from functools import partial

import pytest

from labkit import calc
from labkit.calc import Layout, Recipe
from labkit.calc.plan import Job

MPT = partial(calc.ModelConfig, vocab=50368)
QWEN3_30B = calc.ModelConfig(
    layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128, expert_ffn=768, num_experts=128,
    top_k=8, ffn=6144, vocab=151936, context=40960, tied=False, gated=True, biases=False,
    learned_positions=False,
)  # fmt: skip


def flops(model):
    return 12288 * float(calc.flops_per_token(model, sequence=4096, causal=True))


MAXTEXT = Recipe(
    name="no gradient is kept", parameter_bytes=4, gradient_bytes=0, moment_bytes=(4, 4)
)
H100_80_GIB = replace(calc.GPUS["h100"], memory_bytes=80 * 2**30)
SAVED = Recipe(
    name="saved", parameter_bytes=2, gradient_bytes=0, master_bytes=4, moment_bytes=(4, 4)
)
# source: (expression, value, relative tolerance)
CASES = {
    "llm-foundry, benchmarking README, 30b 8192": (
        lambda: calc.num_parameters(MPT(layers=48, hidden=7168, heads=56, context=8192)),
        30_019_254_272,
        0,
    ),
    "karpathy/llm.c, pull request 309": (
        lambda: calc.num_parameters(replace(calc.MODELS["gpt2"], vocab=50304)),
        124_475_904,
        0,
    ),
    "vllm pull request 2031, blocks of 16 tokens, measured": (
        lambda: calc.requests_that_fit("llama2-7b", "a100-80g", 16, page_size=16),
        7351,
        0.05,
    ),
    "vllm pull request 10511, GiB of an H100 as a program sees it": (
        lambda: calc.GPUS["h100"].memory_bytes / 2**30,
        79.22,
        0.006,
    ),
    "cache in 8 bits beside weights in 16": (
        lambda: calc.requests_that_fit("llama3-8b", H100_80_GIB, 8192, cache_itemsize=1),
        114,
        0,
    ),
    "verl tests/utils/test_flops_counter.py, deepseek-v3": (
        lambda: flops("deepseek-v3"),
        3_145_850_406_567_936,
        1e-4,
    ),
    "verl tests/utils/test_flops_counter.py, qwen3_moe": (
        lambda: flops(QWEN3_30B),
        306_570_470_621_184,
        1e-4,
    ),
    "DeepSpeed issue 4527, zero 3, and the largest layer whole": (
        lambda: (
            calc.model_state_bytes(6805e6, "megatron_bf16", 3, 4).to("GiB") + 4 * 131e6 / 2**30
        ),
        29.01,
        1e-3,
    ),
    "maxtext issue 606, of 4 devices": (
        lambda: 4 * float(calc.model_state_bytes(calc.num_parameters("llama2-7b"), MAXTEXT, 3, 4)),
        80.86e9,
        1e-3,
    ),
    "bigscience tr11-176B-ml README, a checkpoint": (
        lambda: calc.model_state_bytes(176_247_271_424, SAVED),
        2467e9,
        1e-3,
    ),
    "Megatron-LM issues 4050 and 2439, GiB of weights": (
        lambda: calc.plan.memory(
            Job("mixtral-8x7b", "megatron_bf16", calc.cluster("h100", 64), 512, sequence=4096),
            Layout(world_size=64, pp=4, ep=8),
            0,
        )["parameters"].to("GiB"),
        3.4948,
        1e-3,
    ),
    "torchtitan llama3_h100_202412, table 2, 262,144 tokens over 8": (
        lambda: calc.footprint(
            calc.TrainingSetup(
                model="llama3-8b", recipe="amp", zero=3, cp=8, sequence=262_144, recompute="full",
                fused=True,
            )
        ).to("GiB"),
        84.5,
        0.1,
    ),
    "torchtitan llama3_h100_202412, table 5, 405B, with 4 GiB for CUDA": (
        lambda: 4
        + calc.plan.memory(
            Job("llama3-405b", "amp", calc.cluster("h100", 512), 256),
            Layout(world_size=512, tp=8, pp=8, zero=3, microbatch=4, recompute="full"),
        ).to("GiB"),
        82.5,
        0.2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("source", CASES)
def test_a_published_number_is_found(source):
    call, value, tolerance = CASES[source]
    assert float(call()) == pytest.approx(value, rel=tolerance, abs=0)


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "microbatch"),
    [  # llm-foundry, benchmarking README: with a fused cross-entropy they ran
        (MPT(layers=24, hidden=1536, heads=12, context=2048), "h100", 384, 24),
        (MPT(layers=24, hidden=1024, heads=16, context=512), "a100", 2048, 128),
    ],
)
def test_a_run_that_ran_fits_as_the_planner_assumes_a_fused_loss(model, cluster, batch, microbatch):
    job = Job(model, "amp", calc.cluster(cluster, 8), batch)
    layout = Layout(world_size=8, zero=3, microbatch=microbatch)
    assert calc.plan.verdict(job, layout).fits
    unfused = replace(job, assumptions=calc.plan.Assumptions(loss="unfused"))
    refused = calc.plan.verdict(unfused, layout)
    assert not refused and "of the unfused loss: Assumptions(loss='fused')" in refused.reason


def test_a_run_that_was_out_of_memory_is_too_large():
    # huggingface/trl, issue 3218: 8 x 96 GB
    sgd = Recipe(name="sgd amp", parameter_bytes=4, gradient_bytes=4, cast_bytes=2)
    setup = calc.TrainingSetup(model="llama3-70b", recipe=sgd, zero=3, dp=8, sequence=1024)
    assert calc.footprint(setup) > 96e9


def test_experts_are_shared_over_cp():
    # NVIDIA-NeMo/Megatron-Bridge, issue 4980
    assert str(Layout(world_size=32, cp=16, ep=32)) == "dp 2 x cp 16, ep 32, zero 1, microbatch 1"
