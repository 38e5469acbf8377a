"""Which layouts are refused, with which reason and what would do; which are warned, and at what."""

import dataclasses

import pytest

from labkit import calc
from labkit.calc import Layout
from labkit.calc.plan import Job
from labkit.calc.plan.layout_rules import refusal, warnings_of
from labkit.calc.plan.planned_step import step_parts

A100 = calc.cluster("a100", 512)
GPT3 = Job("gpt3-175b", "zero_paper", A100, 1536)
PLAIN = Layout(world_size=512, tp=4, pp=2, zero=0)


@pytest.mark.parametrize(
    ("model", "batch", "changes", "title", "would_do"),
    [
        ("llama3-8b", 1536, {"world_size": 256}, "GPUs", "cluster of 512"),
        (
            calc.ModelConfig(layers=4, hidden=96, heads=12, kv_heads=6, vocab=9, context=2048),
            1536,
            {"tp": 4},
            "key-value heads",
            "1, 2, 3 or 6",
        ),
        ("gpt2", 1536, {"tp": 8}, "tp does not divide heads", "1, 2, 3, 4, 6 or 12"),
        ("llama1-13b", 1536, {"tp": 8, "cp": 64}, "the tokens", "divisor"),
        ("llama3-8b", 1536, {"ep": 2}, "ep without experts", "give ep=1"),
        ("mixtral-8x7b", 1536, {"ep": 16}, "the experts", "1, 2, 4 or 8"),
        ("gpt2", 1536, {"pp": 16}, "more stages than layers", "12 or fewer"),
        ("llama3-8b", 1536, {"pp": 4, "virtual": 3}, "virtual stages", "virtual=1"),
        ("llama3-8b", 1500, {"pp": 4}, "the batch", "multiple of 128, or a dp of 4"),
        ("llama3-8b", 384, {"pp": 4, "virtual": 2}, "rounds of pp", "batch of 512"),
    ],
)
def test_what_does_not_work_is_refused_with_what_would(model, batch, changes, title, would_do):
    changes = {"world_size": 512, **changes}
    if title == "the tokens":
        changes["sequence_parallel"] = True
    length = 768 if "tokens" in title else None
    job = Job(model, "amp", A100, batch, sequence=length)
    found = refusal(job, Layout(**changes))
    assert found is not None and title in found.title
    assert would_do in found.reason
    with pytest.raises(ValueError, match=title):
        calc.plan.estimate(job, Layout(**changes))
    assert not calc.plan.verdict(job, Layout(**changes))


def test_what_a_refusal_proposes_works():
    job = Job("llama3-8b", "amp", A100, 384)
    layout = Layout(world_size=512, pp=4, virtual=2)
    assert refusal(job, layout)
    for changed in (
        (job, dataclasses.replace(layout, virtual=1)),
        (Job("llama3-8b", "amp", A100, 512), layout),
    ):
        assert refusal(*changed) is None


def test_a_plain_layout_is_neither_refused_nor_warned():
    assert refusal(GPT3, PLAIN) is None
    assert warnings_of(GPT3, PLAIN) == []


def test_tp_across_nodes_is_warned_with_the_seconds_that_it_takes():
    inside, across = Layout(world_size=512, tp=8, pp=8), Layout(world_size=512, tp=16, pp=8)
    assert warnings_of(GPT3, inside) == []
    (said,) = warnings_of(GPT3, across)
    seconds = step_parts(GPT3, across)["tp"]
    assert "tp=16 spans 2 nodes" in said and "tp=8 stays inside one" in said
    reported = float(said.split("take ")[1].split(" s of")[0])
    assert reported == pytest.approx(seconds, rel=0.05)  # without embedding and head
    assert reported > 3 * step_parts(GPT3, inside)["tp"] / 2


def test_tp_whose_ranks_are_far_apart_is_to_be_the_last_axis():
    placed = Layout(world_size=64, tp=8, pp=2, order=("tp", "dp", "cp", "pp"))
    job = Job("llama2-7b", "zero_paper", calc.cluster("h100", 64), 64)
    said = " ".join(calc.plan.estimate(job, placed).warnings)
    assert "tp=8 spans 8 nodes" in said and "tp=8 as the last of order=('tp'," in said


def test_ep_across_nodes_is_warned():
    job = Job("mixtral-8x7b", "amp", A100, 1024)
    (said,) = warnings_of(job, Layout(world_size=512, tp=4, ep=8))
    assert said.startswith("ep=8 spans nodes")


@pytest.mark.parametrize(("zero", "times_over"), [(2, 1 * 24), (3, 3 * 24)])
def test_zero_2_and_3_with_a_pipeline_are_warned_with_their_bytes(zero, times_over):
    layout = dataclasses.replace(PLAIN, zero=zero, reshard_after_forward=True)
    (said,) = warnings_of(GPT3, layout)
    # The last of 2 stages: half of the layers, a copy of the embedding, the last norm.
    table, positions, norm = 50257 * 12288, 2048 * 12288, 2 * 12288
    num = ((174_604_259_328 - table - positions - norm) / 2 + table + positions) / 4
    sent = num * (2 * times_over + (2 if zero == 2 else 0))
    assert f"zero {zero} with a pipeline" in said and f"{24 if zero == 2 else 48} times" in said
    assert calc.bytes_text(sent) in said and calc.bytes_text(4 * num) in said
    alone = dataclasses.replace(layout, pp=1, tp=8)
    assert warnings_of(GPT3, alone) == []


def test_fewer_microbatches_than_stages_are_warned():
    layout = Layout(world_size=512, tp=8, pp=8)
    for batch, num in ((64, 8), (32, 4)):
        said = warnings_of(Job("gpt3-175b", "zero_paper", A100, batch), layout)
        assert said == ([f"{num} microbatches for 8 stages: most of them wait most of the time"]
                        if num < 8 else [])  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "gpus", "microbatch", "said"),
    [
        (128, 16, 16, "give a multiple of 256, or a dp of 8"),
        (96, 64, 1, "give a multiple of 64, or a dp of 32"),
        (6, 4, 4, "give a multiple of 16, or microbatches of 2 over a dp of 1"),
    ],
)
def test_what_a_batch_is_advised_would_do(batch, gpus, microbatch, said):
    job = Job("gpt2", "zero_paper", calc.cluster("a100", gpus), batch)
    refused = refusal(job, Layout(world_size=gpus, microbatch=microbatch))
    assert str(refused).endswith(said)
    dp = int(said.rsplit(" ", 1)[1])
    smaller = 2 if "microbatches" in said else microbatch
    machines = calc.cluster("a100", dp)
    advised = Layout(world_size=dp, microbatch=smaller)
    assert refusal(dataclasses.replace(job, cluster=machines), advised) is None


def test_a_step_of_a_refused_layout_has_no_pieces():
    job = Job("llama3-70b", "amp", calc.cluster("a100", 16), 512)
    for wrong in (
        Layout(world_size=8),
        Layout(world_size=16, pp=2, stages=(40, 41)),
        Layout(world_size=16, pp=2, virtual=3),
    ):
        with pytest.raises(ValueError, match=str(refusal(job, wrong).title)):
            calc.plan.pieces(job, wrong)
