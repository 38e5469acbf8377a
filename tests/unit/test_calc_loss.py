"""The loss by kind, what torch holds beside it, and texts that say what the numbers say."""

import itertools
import re
from dataclasses import replace

import pytest

from labkit import calc
from labkit.calc.layout import RECOMPUTE
from labkit.calc.memory.loss import LOSSES
from labkit.calc.plan import Assumptions, Job

LOGITS = 2 * 8192 * 128_256
LLAMA = calc.TrainingSetup(model="llama3-8b", recipe="amp", zero=3, dp=8, microbatch=2, fused=True)
SHARDED = replace(LLAMA, tp=8, sequence_parallel=True)
PIPE = replace(SHARDED, pp=4, num_microbatches=6, recompute="full")


def parts(setup, stage=None, **changed):
    found = calc.footprint(replace(setup, **changed), stage)
    return {name: float(part) for name, part in found.parts.items()}


@pytest.mark.parametrize(
    ("loss", "kept", "passing"),
    [
        ("unfused", 6 * LOGITS, 8 * LOGITS),
        ("freed", 4 * LOGITS, 8 * LOGITS),  # torchtitan's `del pred` before backward
        ("fused", 2 * LOGITS, 0),
        ("chunked", 0, 14 * LOGITS / 8),
    ],
)
def test_a_loss_keeps_some_of_the_logits_and_makes_others_as_backward_begins(loss, kept, passing):
    assert calc.logits_bytes("llama3-8b", 2, loss=loss) == kept
    assert calc.loss_gradient_bytes("llama3-8b", 2, loss=loss) == passing
    held = parts(LLAMA, loss=loss)
    assert (held["logits and loss"], held["gradients of the loss"]) == (kept, passing)


def test_torchs_loss_parallel_makes_a_third_tensor_of_a_sharded_vocabulary():
    # torch/distributed/tensor/parallel/loss.py: zeros, exponentials and their sum
    sizes = {"tp": 8, "loss": "freed"}
    both = calc.logits_bytes("llama3-8b", 2, **sizes) + calc.loss_gradient_bytes(
        "llama3-8b", 2, **sizes
    )
    assert both == 16 * LOGITS / 8


def test_logits_of_a_chunk_have_the_size_of_an_activation():
    of_float32 = calc.loss_gradient_bytes("llama3-8b", 2, itemsize=4, loss="chunked")
    assert of_float32 == 16 * LOGITS / 8
    assert parts(LLAMA, recipe="fp32", loss="chunked")["gradients of the loss"] == 2 * LOGITS


def test_gathered_inputs_are_whole_where_a_layer_keeps_them_and_where_it_is_recomputed():
    whole = 2 * 8192 * 4096 * 2  # bytes of an input of the layer's linear layers, gathered
    more = 2 * whole * 7 / 8
    none = parts(SHARDED, gathered_inputs=True)
    assert none["activations"] == parts(SHARDED)["activations"] + 32 * more
    full = parts(SHARDED, gathered_inputs=True, recompute="full")
    before = parts(SHARDED, recompute="full")
    assert full["activations"] == before["activations"]
    assert full["recomputed layer"] == before["recomputed layer"] + more
    assert full["gathered gradients"] == none["gathered gradients"] == 2 * whole
    assert set(full) - set(before) == {"gathered gradients"}
    assert parts(SHARDED, gathered_inputs=True, sequence_parallel=False) == parts(
        SHARDED, sequence_parallel=False
    )
    assert parts(LLAMA, gathered_inputs=True) == parts(LLAMA)


def test_stages_have_buffers_for_every_microbatch():
    one, logits = 2 * 8192 * 4096 * 2 / 8, 2 * LOGITS / 8
    found = [parts(PIPE, stage, stage_buffers=True)["stage buffers"] for stage in range(4)]
    # 6 microbatches, 4, 3, 2 and 1 in flight: inputs not in flight, gradients, outputs in flight
    assert found[:3] == [(0 + 6 + 4) * one, (3 + 6 + 3) * one, (4 + 6 + 2) * one]
    assert found[3] == 5 * one + 5 * logits  # one microbatch's are "logits and loss"
    freed = parts(PIPE, 3, stage_buffers=True, loss="freed")["stage buffers"]
    assert freed == 5 * one + 6 * logits
    assert parts(PIPE, 3, stage_buffers=True, loss="chunked")["stage buffers"] == 5 * one
    assert "stage buffers" not in parts(SHARDED, stage_buffers=True)


def test_interleaved_stages_of_a_rank_have_their_buffers_together():
    one, logits = 2 * 8192 * 4096 * 2 / 8, 2 * LOGITS / 8
    setup = replace(PIPE, virtual=2, num_microbatches=4, stage_buffers=True)
    flying = [round(2 * each / 2) for each in calc.in_flight_microbatches(4, 4, "interleaved", 2)]
    found = [parts(setup, stage)["stage buffers"] for stage in range(4)]
    # stage 0 of rank 0 receives nothing, and stage 7 of rank 3 sends nothing
    assert flying[0] == 8 and found[0] == (0 + 8 + 8) * one
    assert found[1] == (8 - flying[1] + 8 + flying[1]) * one
    assert found[3] == (8 - flying[3] + 4 + flying[3] - 1) * one + 3 * logits


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("virtual", [1, 2])
def test_the_planner_counts_them_as_footprint_does(loss, virtual):
    torchs = {"gathered_inputs": True, "stage_buffers": True, "loss": loss}
    setup = replace(PIPE, dp=2, virtual=virtual, num_microbatches=8, **torchs)
    job = Job("llama3-8b", "amp", calc.cluster("h100", 64), 32, assumptions=Assumptions(**torchs))
    text = f"dp=2 tp=8 pp=4 virtual={virtual} microbatch=2 zero=3 recompute=full"
    for rank in range(4):
        expected = parts(setup, rank)
        held = calc.plan.memory(job, calc.Layout.parse(text), rank)
        assert set(held.parts) == set(expected)
        for name in ("gathered gradients", "stage buffers", "recomputed layer", "activations"):
            assert float(held[name]) == expected[name], name


def test_in_fp8_a_gathered_input_has_one_byte():
    # torchao float8_tensor_parallel.py: cast before it is gathered
    whole = {}
    for precision, gathered in itertools.product(("bf16", "fp8"), (False, True)):
        assumed = Assumptions(gathered_inputs=gathered)
        job = Job(
            "llama3-70b", "amp", calc.cluster("h100", 256), 512, 8192,
            precision=precision, assumptions=assumed,
        )  # fmt: skip
        layout = calc.Layout.parse("dp=32 tp=8 zero=3 microbatch=16 recompute=full")
        whole[precision, gathered] = float(calc.plan.memory(job, layout)["recomputed layer"])
    two = 2 * 16 * 8192 * 8192 * 7 / 8
    assert whole["bf16", True] - whole["bf16", False] == 2 * two
    assert whole["fp8", True] - whole["fp8", False] == two


@pytest.mark.parametrize(
    ("layout", "options", "measured"),
    [  # pytorch/torchtitan, benchmarks/llama3_h100_202412, tables 2, 4, 5 and 6, in GiB
        ("llama3-8b dp=2 cp=4 zero=3 recompute=full", (131_072, 2), 84.0),
        ("llama3-70b dp=32 tp=8 zero=3 microbatch=16 recompute=full", (8192, 512), 71.9),
        (
            "llama3-405b dp=8 tp=8 pp=8 virtual=2 zero=3 microbatch=4 recompute=full",
            (8192, 256),
            72.7,
        ),
        ("llama3-405b dp=8 tp=8 pp=8 zero=3 recompute=full", (32_768, 64), 75.3),
    ],
)  # fmt: skip
def test_with_them_torchtitans_memory_is_found(layout, options, measured):
    model, _, text = layout.partition(" ")
    assumed = Assumptions(loss="freed", gathered_inputs=True, stage_buffers=True)
    layout, (sequence, batch) = calc.Layout.parse(text), options
    cluster = calc.cluster("h100", layout.world_size)
    job = Job(model, "amp", cluster, batch, sequence, precision="fp8", assumptions=assumed)
    assert calc.plan.memory(job, layout).to("GiB") == pytest.approx(measured, rel=0.1)


def computed(text):
    """Return what a text of arithmetic with units comes to: `2 * 16,384 tokens * 2 B / 8`."""
    plain = re.sub(r"\bin flight\b|\blayers?\b|\btokens\b|\bB\b|\bof experts\b|,", "", text)
    assert re.fullmatch(r"[\d.\s+*/()e-]+", plain), text
    return eval(plain)


def leaves(result):
    if not result.parts:
        yield result
    for part in result.parts.values():
        yield from leaves(part)


SETUPS = [
    replace(PIPE, loss=loss, recompute=recompute, **torchs)
    for loss, recompute, torchs in itertools.product(
        LOSSES, ("none", "full"), ({}, {"gathered_inputs": True, "stage_buffers": True})
    )
]
_WORDS = ("activations", "recomputed layer")  # they have rounded bytes, or words


@pytest.mark.parametrize("setup", [*SETUPS, LLAMA, replace(LLAMA, zero=2, recipe="megatron_bf16")])
@pytest.mark.parametrize("stage", [0, -1])
def test_every_part_is_what_its_text_comes_to(setup, stage):
    for part in leaves(calc.footprint(setup, stage % setup.pp)):
        if part.name not in _WORDS:
            text = part.substitution.partition(":")[0]
            assert computed(text) == pytest.approx(float(part), rel=1e-6), part.explain()


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("gathered", [False, True])
def test_every_tensor_of_a_layer_is_what_its_text_comes_to(recompute, gathered):
    how = {"recompute": recompute, "gathered_inputs": gathered, "fused": True}
    found = calc.activation_bytes("llama3-8b", 2, 8, True, **how)
    for part in found.parts.values():
        assert computed(part.substitution) == pytest.approx(float(part)), part.explain()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("function", [calc.logits_bytes, calc.loss_gradient_bytes])
def test_the_formula_of_a_loss_is_that_of_its_kind(function, tp, loss):
    found = function("llama3-8b", 2, tp, itemsize=2, loss_itemsize=4, loss=loss)
    letters = {"T": "16384", "V": "128256", "t": str(tp), "b": "2", "l": "4", "(": "* ("}
    formula = found.formula.partition(";")[0].replace("T V", "T * V")
    numbers = re.sub(r"[TVtbl(]", lambda letter: letters[letter[0]], formula)
    assert computed(numbers) == float(found), found.explain()
    assert loss in found.convention


def test_the_formula_of_states_has_what_the_gpu_holds():
    def said(zero, *offload):
        return calc.model_state_bytes(1e9, "zero_paper", zero, 8, offload=offload).formula

    assert said(0) == "(K_p + K_g + K_o) N" and said(3) == "(K_p + K_g + K_o) N/d"
    assert said(1) == "(K_p + K_g) N + K_o N/d" and said(2) == "K_p N + (K_g + K_o) N/d"
    assert said(1, "master", "moments") == "(K_p + K_g) N"
    assert said(2, "moments") == "K_p N + (K_g + K_master) N/d"
    assert said(3, "parameters", "gradients", "master", "moments") == "0"


def test_the_formula_of_inference_says_that_gpus_share_the_work():
    shared = calc.pass_time("llama3-70b", "h100", 1, tp=4)
    assert shared.formula == "max((N w + c k) / (n bandwidth), 2 N t / (n peak)), n GPUs"
    alone = calc.pass_time("llama3-70b", "h100", 1)
    assert alone.formula == "max((N w + c k) / bandwidth, 2 N t / peak)"
    fits = calc.requests_that_fit("llama3-70b", "h100", 8192, tp=4)
    assert fits.formula == "(u M - N w / t) / cache of a request"
