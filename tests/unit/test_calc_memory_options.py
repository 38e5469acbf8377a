"""Choices of real trainings: losses, recomputation, FSDP's switches, offload, adapters, Muon."""

from dataclasses import replace

import pytest

from labkit import calc

LLAMA = calc.TrainingSetup(model="llama3-8b", recipe="amp", zero=3, dp=8, microbatch=2, fused=True)


def parts(setup=LLAMA, **changed):
    return {
        name: float(part) for name, part in calc.footprint(replace(setup, **changed)).parts.items()
    }


def test_a_fused_loss_keeps_the_logits_alone_and_one_in_chunks_an_eighth_for_a_moment():
    logits = 2 * 8192 * 128_256
    unfused, fused, chunked = (parts(loss=each) for each in ("unfused", "fused", "chunked"))
    of_loss = ("logits and loss", "gradients of the loss")
    assert [unfused[name] for name in of_loss] == [6 * logits, 8 * logits]
    assert [fused[name] for name in of_loss] == [2 * logits, 0]
    assert [chunked[name] for name in of_loss] == [0, 14 * logits / 8]


@pytest.mark.parametrize(
    ("config", "microbatch", "device"),
    [  # mosaicml/llm-foundry, scripts/train/benchmarking: they ran, with a fused loss
        (calc.ModelConfig(layers=24, hidden=1536, heads=12, vocab=50368, context=2048), 24, "h100"),
        (
            calc.ModelConfig(layers=24, hidden=1024, heads=16, vocab=50368, context=512),
            128,
            "a100-80g",
        ),
    ],
)
def test_a_training_that_ran_with_a_fused_loss_fits(config, microbatch, device):
    setup = calc.TrainingSetup(model=config, recipe="amp", zero=3, dp=8, microbatch=microbatch)
    room = calc.GPUS[device].memory_bytes - 4 * 2**30
    assert calc.footprint(setup) > room
    assert calc.footprint(replace(setup, loss="fused")) < room


def test_every_second_product_kept_is_what_torchtitan_measured():
    # benchmarks/llama3_h100_202412: 8B on 8 H100, 82.4 GiB before torch.compile
    kept = calc.footprint(replace(LLAMA, recompute="operations"))
    assert kept.to("GiB") == pytest.approx(82.4, rel=0.05)
    by = {each: parts(recompute=each)["activations"] for each in ("none", "operations", "full")}
    D, query, key, F = 4096, 4096, 1024, 14336
    token = 2 * D + 2 * (query + key) + 2 * query + 4 * 32 + 2 * F + 2 * D
    assert by["operations"] == 32 * 2 * 8192 * token
    assert by["full"] < by["operations"] < by["none"]


def test_with_a_pipeline_fsdp_keeps_parameters_and_gradients_whole():
    # the same page, table 5: 405B, FSDP 8 x TP 8 x PP 8, 82.5 GiB reserved
    setup = calc.TrainingSetup(
        model="llama3-405b", recipe="amp", zero=3, dp=8, tp=8, pp=8, microbatch=4,
        num_microbatches=8, sequence=8192, recompute="full", sequence_parallel=True, fused=True,
    )  # fmt: skip
    reserve_gib = 4
    assert calc.footprint(setup).to("GiB") + reserve_gib == pytest.approx(82.5, rel=0.2)
    held = -(-int(calc.num_parameters("llama3-405b")) // 64)
    assert parts(setup)["whole units"] == (2 + 4) * held
    assert parts(setup, reshard_after_forward=True)["whole units"] < 0.2 * 6 * held
    one_stage = parts(reshard_after_forward=False)["whole units"]
    assert one_stage == 2 * int(calc.num_parameters("llama3-8b"))
    assert parts() == parts(reshard_after_forward=True)


def test_copies_of_the_shards_cost_as_many_bytes_more():
    assert parts(shards=4)["moments"] == 2 * parts()["moments"]
    assert parts(shards=8) == parts()
    with pytest.raises(ValueError, match="shards=3"):
        replace(LLAMA, shards=3)


def test_offloaded_states_are_on_the_host():
    # deepspeedai/DeepSpeed, issue 4527: 6.8B parameters on 4 GPUs, largest layer of 131M
    on_gpu = calc.model_state_bytes(
        6805e6, "zero_paper", 3, 4, offload=("gradients", "master", "moments")
    )
    assert on_gpu.to("GiB") + 4 * 131e6 / 2**30 == pytest.approx(3.66, rel=0.002)
    every = ("parameters", "gradients", "master", "moments")
    of_host = calc.host_state_bytes(6805e6, "zero_paper", every, buffers=1.5)
    assert of_host.to("GiB") == pytest.approx(152.1, rel=0.002)
    assert calc.host_state_bytes(7e9, "zero_paper", ("master", "moments")) == 84e9
    assert calc.host_state_bytes(7e9, "zero_paper", ("master", "moments"), hosts=2) == 42e9
    offloaded = parts(offload=("moments",))
    assert "moments" not in offloaded and offloaded["gradients"] == parts()["gradients"]
    with pytest.raises(ValueError, match="'optimizer'"):
        calc.host_state_bytes(7e9, "amp", ("optimizer",))


def test_adapters_alone_have_gradients_and_moments():
    adapters = int(calc.lora_parameters("llama3-8b", 16))
    quantized = parts(zero=0, dp=1, frozen_bytes=0.5, adapter_rank=16)
    assert quantized["frozen weights"] == int(calc.num_parameters("llama3-8b")) / 2
    assert quantized["gradients"] == 4 * adapters and quantized["moments"] == 8 * adapters
    assert quantized["dequantized matrix"] == 2 * 4096 * 14336
    whole = parts(zero=0, dp=1, frozen_bytes=2, adapter_rank=16)
    assert "dequantized matrix" not in whole and whole["frozen weights"] > 16e9
    sharded = parts(frozen_bytes=2, adapter_rank=16)
    assert sharded["frozen weights"] == whole["frozen weights"] / 8
    with pytest.raises(ValueError, match="adapter_rank=0"):
        replace(LLAMA, frozen_bytes=0.5)


def test_muon_has_one_moment_of_a_matrix_and_two_of_tables():
    setup = replace(LLAMA, zero=0, dp=1)
    muon, adam = parts(setup, recipe="muon"), parts(setup, recipe="megatron_bf16")
    counted = calc.num_parameters("llama3-8b")
    tables = sum(int(counted[name]) for name in ("embedding", "head", "norms"))
    assert adam["moments"] - muon["moments"] == 4 * (int(counted) - tables)
    assert {name: muon[name] for name in ("parameters", "gradients", "master")} == {
        name: adam[name] for name in ("parameters", "gradients", "master")
    }
