"""The plan: every layout judged once, ranked by seconds, losers by reason; and what would help."""

import dataclasses
import sys

import pytest

from labkit import calc, cli
from labkit.calc import Layout
from labkit.calc.plan import Assumptions, Job
from labkit.calc.plan.layout_rules import refusal
from labkit.calc.plan.ranking import STEPS

SMALL = Job("llama3-8b", "megatron_bf16", calc.cluster("h100", 32), 64, tokens=1e12)
MOE = Job("mixtral-8x7b", "megatron_bf16", calc.cluster("h100", 64), 64, sequence=4096)


@pytest.fixture(scope="module")
def small():
    return calc.plan.plan(SMALL, top=5)


def judged_one_by_one(job):
    """(seconds by layout, counts by term), from the public functions alone."""
    seconds, counts = {}, {}
    for layout in calc.plan.layouts(job):
        found = calc.plan.verdict(job, layout)
        if found:
            seconds[layout] = float(calc.plan.estimate(job, layout).step)
        else:
            counts[found.term] = counts.get(found.term, 0) + 1
    return seconds, counts


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_the_plan_is_what_judging_every_layout_gives(model):
    cluster = calc.cluster("h100", 16)
    job = Job(model, "megatron_bf16", cluster, 8, sequence=4096)
    found = calc.plan.plan(job, top=7)
    seconds, counts = judged_one_by_one(job)
    assert found.num_feasible == len(seconds) > 30
    assert found.count == len(seconds) + sum(counts.values())
    reported = {group.reason.removeprefix("memory: "): group.count for group in found.losers}
    assert reported == counts
    best = {}
    for layout, each in seconds.items():
        shape = (layout.tp, layout.pp, layout.cp, layout.ep)
        best[shape] = min(each, best.get(shape, each))
    assert [float(each.step) for each in found.ranked] == sorted(best.values())[:7]


def test_every_layout_is_another_and_all_kinds_are_tried():
    found = list(calc.plan.layouts(MOE))
    assert len(found) == len(set(found))
    for axis in ("tp", "pp", "cp", "ep", "virtual", "zero", "recompute", "microbatch"):
        assert len({getattr(layout, axis) for layout in found}) > 1, axis
    assert {layout.ep for layout in found} == {1, 2, 4, 8}
    assert {layout.zero for layout in found} == {0, 1, 2, 3}
    assert {layout.microbatch for layout in found} == {1, 2, 4, 8, 16}
    assert all(layout.world_size == 64 for layout in found)


def test_levels_of_zero_over_one_rank_are_not_distinguished():
    job = Job("gpt2", "amp", calc.cluster("h100", 1), 4)
    assert {layout.zero for layout in calc.plan.layouts(job)} == {0}


def test_a_plan_for_100_000_gpus_judges_few_layouts():
    """So it takes seconds: 100 times the GPUs are about twice the layouts."""
    few, many = (
        Job("llama3-405b", "megatron_bf16", calc.cluster("h100", num_gpus), 5000)
        for num_gpus in (1000, 100_000)
    )
    found = calc.plan.plan(many)
    assert 1000 < found.count < 20_000 and found.ranked
    assert found.count < 3 * len(list(calc.plan.layouts(few)))


def test_llama_3s_own_layout_is_among_the_first():
    job = Job("llama3-405b", "megatron_bf16", calc.cluster("h100", 16384), 2048)
    shapes = [
        (each.layout.tp, each.layout.pp, each.layout.cp, each.layout.dp)
        for each in calc.plan.plan(job, top=10).ranked
    ]
    assert (8, 16, 1, 128) in shapes


def test_losers_come_with_their_nearest_misses(small):
    group = next(each for each in small.losers if each.reason == "memory: activations")
    over = [each.over_bytes for each in group.nearest]
    assert len(over) == 3 and over == sorted(over) and over[0] > 0
    assert calc.bytes_text(over[0]) in str(group)
    for each in group.nearest:
        parts = {name: float(part) for name, part in each.memory.parts.items()}
        assert max(parts, key=parts.get) == "activations"
        assert sum(parts.values()) - SMALL.room_bytes == pytest.approx(each.over_bytes)


def test_the_table_has_a_row_for_each_and_says_why_others_lost(small):
    text = str(small)
    lines = text.splitlines()
    assert "llama3-8b on 32 x h100" in lines[0]
    assert [line[0] for line in lines[4:9]] == list("12345")
    for each in small.ranked:
        assert str(each.layout) in text and f"{each.mfu.to('%'):.1f}%" in text
    assert lines[10] == "why others lost"
    assert len(lines) == 11 + len(small.losers)


def test_where_nothing_fits_the_nearest_miss_and_what_would_help_are_reported():
    found = calc.plan.plan(Job("llama3-405b", "megatron_bf16", calc.cluster("h100", 64), 64))
    assert found.ranked == () and found.num_feasible == 0
    assert "nothing fits" in str(found) and "more GPUs" in str(found)
    with pytest.raises(ValueError, match="nothing fits"):
        _ = found.best


def test_every_number_of_an_estimate_says_how_it_came(small):
    best = small.best
    numbers = [best.step, best.memory, best.tokens_per_s, best.mfu, best.hfu, best.goodput]
    numbers += [best.time, best.dollars, best.flops_per_s]
    for each in numbers:
        assert each.formula and each.substitution, each.name
        assert each.explain().startswith(each.name)
    text = best.explain()
    assert "of the peak" in text and "overlaps" in text and "GPUs * hours * price" in text


def test_an_estimates_numbers_follow_from_its_step(small):
    best = small.best
    assert float(best.step) == pytest.approx(sum(map(float, best.step.parts.values())))
    rate = 64 * 8192 / float(best.step)
    assert float(best.tokens_per_s) == pytest.approx(rate)
    of_token = calc.flops_per_token("llama3-8b", causal=True, sequence=8192, parameters="matmul")
    assert float(best.mfu) == pytest.approx(rate * float(of_token) / (32 * 989.4e12))
    seconds = 1e12 / rate / float(best.goodput)
    assert float(best.time) == pytest.approx(seconds)
    assert float(best.dollars) == pytest.approx(32 * seconds / 3600 * 2.5)


def test_hfu_counts_the_up_projections_that_latent_attention_recomputes():
    job = calc.plan.Job("deepseek-v3", "megatron_bf16", calc.cluster("h100", 256), 256)
    plain, again = (
        calc.plan.estimate(job, calc.Layout.parse(f"dp=16 pp=16 ep=16 recompute={how}"))
        for how in ("none", "selective")
    )
    up = 128 * (128 + 64) * 1536 + 128 * (128 + 128) * 512  # queries; keys and values
    of_token = calc.flops_per_token("deepseek-v3", causal=True, parameters="matmul")
    more = 2 * 61 * up / float(of_token)
    assert float(plain.hfu) == float(plain.mfu)
    assert float(again.hfu) / float(again.mfu) == pytest.approx(1 + more)


def test_recomputing_raises_hfu_by_the_layers_forward_pass_and_not_mfu():
    layout = Layout(world_size=32, tp=2, recompute="full")
    found = calc.plan.estimate(SMALL, layout)
    plain = calc.plan.estimate(SMALL, dataclasses.replace(layout, recompute="none"))
    assert float(plain.hfu) == float(plain.mfu) > float(found.mfu)
    of_token = float(
        calc.flops_per_token("llama3-8b", causal=True, sequence=8192, parameters="matmul")
    )
    again = of_token / 3 - 2 * 128256 * 4096
    assert float(found.hfu) / float(found.mfu) == pytest.approx(1 + again / of_token)


def test_goodput_falls_with_the_cluster_and_reaches_nothing_where_all_time_is_lost():
    shares = [
        float(calc.plan.estimate(job, Layout(world_size=gpus, tp=8, pp=16)).goodput)
        for gpus in (1024, 16384)
        for job in [Job("llama3-405b", "amp", calc.cluster("h100", gpus), 2048)]
    ]
    assert 0.8 < shares[1] < shares[0] < 1
    slow = Assumptions(checkpoint_write_s=20_000.0, restart_s=20_000.0)
    job = Job(
        "llama3-405b", "amp", calc.cluster("h100", 16384), 2048, tokens=1e12, assumptions=slow
    )
    found = calc.plan.estimate(job, Layout(world_size=16384, tp=8, pp=16))
    assert float(found.goodput) == 0 and float(found.time) == float("inf")


def test_a_change_is_the_first_in_order_that_is_enough():
    job = Job("llama2-70b", "megatron_bf16", calc.cluster("h100", 64), 64)
    tight = Layout(world_size=64, tp=2, zero=0, sequence_parallel=False)
    change = calc.plan.smallest_change(job, tight)
    assert calc.plan.verdict(job, change.layout) and change.verdict.layout == change.layout
    assert dataclasses.replace(tight, **{k: v for k, (_, v) in change.moved.items()}) == (
        change.layout
    )
    for knob, values, _ in STEPS if len(change.moved) > 1 else ():
        for value in values:
            try:
                one = dataclasses.replace(tight, **{knob: value})
            except ValueError:
                continue
            assert refusal(job, one) or not calc.plan.verdict(job, one), f"{one} is smaller"
    with pytest.raises(ValueError, match="it fits"):
        calc.plan.smallest_change(job, change.layout)


def test_a_microbatch_that_is_too_large_is_halved():
    job = Job("llama3-8b", "megatron_bf16", calc.cluster("h100", 64), 1024)
    layout = Layout(world_size=64, tp=4, zero=1, microbatch=16)
    assert calc.plan.verdict(job, layout).term == "activations"
    change = calc.plan.smallest_change(job, layout)
    assert set(change.moved) == {"microbatch"}
    doubled = dataclasses.replace(change.layout, microbatch=2 * change.layout.microbatch)
    assert not calc.plan.verdict(job, doubled)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"memory_share": 0}, ValueError),
        ({"memory_share": 1.1}, ValueError),
        ({"link_share": -1}, ValueError),
        ({"overlap": 2}, ValueError),
        ({"product_edge": -1}, ValueError),
        ({"expert_nodes": 0}, ValueError),
        ({"schedule": "gpipe"}, ValueError),
        ({"reserve_bytes": -1}, ValueError),
        ({"checkpoint_write_s": 0}, ValueError),
    ],
)
def test_an_assumption_that_cannot_be_is_refused_by_name(wrong, error):
    with pytest.raises(error, match=next(iter(wrong))):
        Assumptions(**wrong)


def test_a_plan_is_of_a_job():
    with pytest.raises(TypeError, match="give a Job"):
        calc.plan.plan("llama3-8b")
    with pytest.raises(ValueError, match="no ModelConfig"):
        Job("llama9", "amp", "h100", 64)


@pytest.fixture
def labkit(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, " ".join(out.split()), " ".join(err.split())

    return call


def test_the_command_times_one_layout(labkit):
    words = "plan --model llama3-8b --recipe amp --global-batch 16 --tokens 15T --layout".split()
    text = "dp=8 zero=3 microbatch=2 recompute=operations"
    job = calc.plan.Job("llama3-8b", "amp", calc.cluster("h100", 8), 16, tokens=15e12)
    found = calc.plan.estimate(job, calc.Layout.parse(text))
    status, out, err = labkit(*words, text)
    assert (status, err) == (0, "")
    rate = float(found.tokens_per_s)
    speed = f"{rate / 8:,.0f} tokens/s a GPU, {rate:,.0f} in all; MFU {found.mfu}, HFU {found.hfu}"
    parts = [f"{name} {part}" for name, part in found.step.parts.items()]
    for said in (
        str(found.layout),
        f"in all {found.step}",
        speed,
        *parts,
        "it fits: ",
        str(found.memory),
    ):
        assert said in out
    assert f"{found.time} in all, ${float(found.dollars):,.0f}" in out and "Why others" not in out
    assert "formula" in labkit(*words, text, "--explain")[1]


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("dp=8", ("too many", "To change first", "tokens/s a GPU")),
        ("tp=3", ("give 1, 2, 4 or 8",)),
    ],
)
def test_the_command_says_why_a_layout_does_not_work(labkit, layout, said):
    status, out, _ = labkit("plan", "--model", "llama3-8b", "--layout", layout)
    assert status == 1
    assert all(each in out for each in said)


def test_a_layout_has_its_own_number_of_gpus(labkit):
    words = "plan --model llama3-8b --gpus 64 --layout".split()
    status, _, err = labkit(*words, "dp=8")
    assert status == 2 and "--gpus 64: the layout has 8; leave --gpus out" in err


def test_the_command_shows_the_table_and_why_others_lost(labkit, small):
    words = "plan --model llama3-8b --cluster h100 --gpus 32 --global-batch 64 --tokens 1e12"
    status, out, err = labkit(*words.split(), "--top", 5, "--explain")
    assert (status, err) == (0, "")
    for each in small.ranked:
        assert str(each.layout) in out and f"{each.mfu.to('%'):.1f}%" in out
    assert "Why others lost" in out and small.losers[0].reason in out
    assert "formula" in out


def test_a_config_json_is_planned_and_judged_like_a_preset(labkit, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, '
        '"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, '
        '"vocab_size": 128256, "max_position_embeddings": 8192}'
    )
    words = "--gpus 32 --global-batch 64 --sequence 8k --tokens 15T --top 3".split()
    ours, preset = (labkit("plan", "--model", each, *words)[1] for each in (path, "llama3-8b"))
    assert ours.replace("a model", "llama3-8b") == preset and "days" in ours
    layout = ("--layout", "dp=8 tp=2 recompute=full")
    status, out, _ = labkit("memory", "--model", path, *layout)
    assert status == 0 and "it fits" in out and "activations" in out
    assert "tokens * 128,256 / 2 * 2 B" in " ".join(out.split())
    status, out, _ = labkit("memory", "--model", "llama3-70b", "--layout", "dp=2 tp=8")
    assert status == 1 and "too many" in out and "To change first" in out
    status, out, _ = labkit("cache", "--model", tmp_path, "--tokens", "8k")
    assert status == 0 and "1.07 GB 1.0 GiB" in out and "requests fit" in out
    left = float(calc.requests_that_fit("llama3-8b", "h100", 8192)["left for caches"])
    assert f"{left / 131_072:,.0f} tokens in all, {left / 2**30:.2f} requests" in out


def test_a_layout_that_a_rule_refuses_is_not_said_to_lack_memory(labkit):
    status, out, _ = labkit("memory", "--model", "llama3-8b", "--layout", "tp=3")
    assert status == 1 and "give 1, 2, 4 or 8" in out and "To change first" not in out


def test_fp8_is_planned(labkit):
    words = "plan --model llama3.2-1b --gpus 1 --global-batch 4 --top 1 --precision".split()
    step = {}
    for precision in ("bf16", "fp8"):
        h100 = calc.cluster("h100", 1)
        job = calc.plan.Job("llama3.2-1b", "megatron_bf16", h100, 4, precision=precision)
        step[precision] = str(calc.plan.plan(job, 1).best.step)
    assert step["bf16"] != step["fp8"] and step["fp8"] in labkit(*words, "fp8")[1]


def test_the_command_ends_with_1_where_nothing_fits_and_with_2_for_a_wrong_call(labkit):
    status, out, _ = labkit("plan", "--model", "llama3-405b", "--gpus", 8, "--global-batch", 16)
    assert status == 1 and "Nothing fits" in out and "too many" in out
    status, _, err = labkit("plan", "--model", "llama9")
    assert status == 2 and "none of gpt2" in err


def test_the_command_takes_more_gpus_of_another_kind(labkit):
    words = "plan --model llama3-8b --sequence 4k --global-batch 64 --also a100:8".split()
    status, out, _ = labkit(*words, "--layout", "dp=16 tp=1 zero=1")
    assert status == 0
    assert "h100 and a100-80g in one job" in out
    assert all(way in out for way in ("equal shares", "shares by speed", "h100 alone"))
    status, _, err = labkit(*words[:-1], "a100")
    assert status == 2
    assert "such as a100:32" in " ".join(err.replace("\u2502", " ").split())
