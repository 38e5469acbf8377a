"""The planner with knobs: what it shows is the plan, bars are as long as their parts."""

import re

import pytest

from labkit import calc
from labkit.calc import Layout
from labkit.calc.plan import Job
from labkit.notebook import layout_planner
from labkit.notebook.bars import bar
from labkit.notebook.planner import MEMORY_COLOURS, STEP_COLOURS, breakdown, plan_html

SMALL = {"model": "llama3.2-1b", "gpus": 8, "batch": 8, "top": 3}


@pytest.fixture(scope="module")
def job():
    return Job("llama3-8b", "megatron_bf16", calc.cluster("h100", 16), 64, tokens=1e12)


def test_it_shows_the_plan_of_where_its_knobs_stand_and_of_where_they_are_turned_to():
    planner = layout_planner(**SMALL)
    job = Job("llama3.2-1b", "megatron_bf16", calc.cluster("h100", 8), 8, tokens=1e12)
    plan = calc.plan.plan(job, 3)
    assert repr(planner) == str(plan)
    assert planner.plan.ranked[0].layout == plan.best.layout
    html = planner._repr_mimebundle_()["text/html"]
    assert html == plan_html(plan)
    for each in plan.ranked:
        assert str(each.layout) in html
    for losers in plan.losers:
        assert f"{losers.count:,} " in html
    planner._knobs["gpus"].value = 16
    assert planner.plan.job.num_gpus == 8 and "press Plan" in planner._note.value
    planner._button.click()
    assert planner.plan.job.num_gpus == 16 and not planner._note.value
    assert str(planner.plan.best.layout) in planner._said.value


def test_what_cannot_be_is_said_in_the_place_of_the_table():
    planner = layout_planner("gpt2", gpus=8, batch=8)
    planner._knobs["sequence"].value = 131072
    planner.plan_again()
    assert planner.plan is None and "positions" in planner._said.value
    planner._knobs["sequence"].value = 0
    planner.plan_again()
    assert planner.plan is not None


def test_where_nothing_fits_it_says_what_would_help():
    planner = layout_planner("llama3-405b", gpus=8, batch=8)
    assert not planner.plan.ranked
    assert "nothing fits" in planner._said.value


def own_layout(planner, text):
    planner._layout.value = text
    planner._layout._handle_string_msg(None, {"event": "submit"}, None)
    return planner._said.value.removesuffix(plan_html(planner.plan))


def test_a_layout_of_ones_own_is_timed_and_has_a_place_among_all_shapes():
    planner = layout_planner(**SMALL)
    every = calc.plan.plan(planner.plan.job, 1000).ranked
    assert len(every) > SMALL["top"]
    for place in (1, len(every)):
        own = every[place - 1]
        sizes = {name: getattr(own.layout, name) for name in ("dp", "tp", "pp", "cp", "virtual")}
        sizes |= {"zero": own.layout.zero, "microbatch": own.layout.microbatch}
        said = own_layout(planner, " ".join(f"{name}={size}" for name, size in sizes.items()))
        assert str(own) in said
        assert f"place {place}: {place - 1} of {len(every)} ranked layouts are faster" in said
        assert f"compute {own.step['compute']}" in said


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("dp=8 zero=0 microbatch=8", "To change first: "),
        ("dp=4", "a layout of 4 ranks on a cluster of 8 GPUs"),
        ("dp=8 tq=2", "give pairs such as tp=4"),
    ],
)
def test_a_layout_that_cannot_be_says_why_and_the_plan_stays(own, said):
    planner = layout_planner("llama3-8b", gpus=8, batch=64, top=2)
    found = own_layout(planner, own)
    assert said in found and "place" not in found
    assert planner.plan.ranked


def test_a_model_of_ones_own_is_planned():
    config = calc.ModelConfig(layers=4, hidden=512, heads=8, vocab=1000, context=1024)
    planner = layout_planner(config, gpus=8, batch=8, top=1)
    assert planner.plan.job.model == config
    label, last = planner._knobs["model"].options[-1]
    assert label.startswith("your own (") and last == config


def test_a_bar_is_as_long_as_its_parts(job):
    estimate = calc.plan.estimate(job, Layout(world_size=16, tp=2, zero=1))
    for whole, colours, scale in (
        (estimate.step, STEP_COLOURS, 2 * float(estimate.step)),
        (estimate.memory, MEMORY_COLOURS, job.room_bytes),
    ):
        widths = [
            float(each) for each in re.findall(r"width: ([\d.]+)%", bar(whole, colours, scale))
        ]
        assert len(widths) == len(whole.parts)
        assert sum(widths) == pytest.approx(100 * float(whole) / scale, abs=0.01 * len(widths))
        titles = re.findall(r'title="([^:"]+):', bar(whole, colours, scale))
        assert titles == list(whole.parts)


def test_every_part_of_a_step_has_a_colour_of_its_own(job):
    estimate = calc.plan.estimate(job, Layout(world_size=16, tp=2, pp=2))
    assert set(estimate.step.parts) <= set(STEP_COLOURS)
    assert len(set(STEP_COLOURS.values())) == len(STEP_COLOURS)
    both = [*STEP_COLOURS.values(), *MEMORY_COLOURS.values()]
    assert len(set(both)) == len(both), "a colour means one thing in a row"


def test_the_breakdown_of_a_step_begins_with_its_longest_part(job):
    estimate = calc.plan.estimate(job, Layout(world_size=16, tp=2))
    rows = breakdown(estimate)
    assert rows[0][0] == "compute"
    shares = [float(text.split(", ")[1].rstrip("%")) for _, text in rows]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(100, abs=0.5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "gpt5"}, "none of"),
        ({"cluster": "abacus"}, "none of"),
        ({"gpus": 0}, "gpus=0"),
        ({"gpus": 12}, "whole number of nodes"),
        ({"batch": 0}, "global_batch=0"),
        ({"top": 0}, "top=0"),
    ],
)
def test_what_no_training_has_is_refused_by_name(wrong, said):
    with pytest.raises(ValueError, match=said):
        layout_planner(**wrong)


def test_a_knob_that_there_is_not_is_named():
    with pytest.raises(TypeError, match="nodes"):
        layout_planner(nodes=4)
