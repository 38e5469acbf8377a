"""The memory calculator: its words, its knobs, and the button that does what the words say."""

import dataclasses
import importlib
import re

import pytest

from labkit import calc
from labkit.calc import TrainingSetup, footprint
from labkit.calc.memory.fit import smallest_change
from labkit.notebook import memory as answer
from labkit.notebook import memory_calculator

LLAMA = TrainingSetup(model="llama2-7b")
LARGE = TrainingSetup(model="llama2-70b", tp=8, pp=8, recompute="full")


# --- what it says --------------------------------------------------------------------------------


def test_the_table_has_every_part_and_their_sum():
    heading, *parts, together = answer.rows(LLAMA)
    assert heading == ["", "each GPU", "how"]
    assert {name: cell for name, cell, _ in parts} == {
        name: str(part) for name, part in footprint(LLAMA).parts.items()
    }
    assert together == ["together", str(footprint(LLAMA)), "on 1 GPU"]


def test_of_a_long_pipeline_both_ends_are_shown_and_the_fullest_is_there():
    gpus = answer.shown(LARGE)
    assert list(gpus) == ["stage 0", "stage 1", "stage 6", "stage 7"]
    assert footprint(LARGE) in gpus.values()
    assert list(answer.shown(dataclasses.replace(LARGE, pp=4))) == [f"stage {n}" for n in range(4)]
    row = next(row for row in answer.rows(LARGE) if row[0] == "logits and loss")
    assert row[1:4] == ["–"] * 3 and row[4].endswith("MB")


def test_what_fits_says_what_is_left():
    fits = dataclasses.replace(LLAMA, tp=2)
    left = 80e9 - float(footprint(fits))
    said = answer.advice(fits, 80e9)
    assert f"{calc.bytes_text(left)} are left ({left / 80e9:.0%})" in said
    assert answer.changes(fits, 80e9) == []


def test_what_does_not_fit_says_by_how_much_and_what_to_change():
    said = answer.advice(LLAMA, 80e9)
    assert f"{calc.bytes_text(float(footprint(LLAMA)) - 80e9)} more than 80 GB" in said
    assert "tp: 1 -> 2; then 67.1 GB on 2 GPUs" in said


def test_where_one_change_is_not_enough_it_names_several():
    alone = TrainingSetup(model="llama2-70b")
    said = answer.advice(alone, 80e9)
    together = "zero: 0 -> 3; recompute: none -> full; dp: 1 -> 32"
    assert f"Together: {together}; then" in said
    assert f"on {answer.changes(alone, 80e9)[-1].setup.num_gpus} GPUs." in said


def test_several_changes_on_the_same_gpus_come_before_one_that_needs_more():
    eight = dataclasses.replace(LLAMA, dp=8)
    assert smallest_change(eight, 24e9).setup.num_gpus > 8, "tensor parallelism, or stages"
    to_make = answer.changes(eight, 24e9)
    assert to_make == calc.changes_that_fit(eight, 24e9) and len(to_make) > 1
    assert to_make[-1].footprint <= 24e9
    said = answer.advice(eight, 24e9)
    assert "Together: zero: 0 -> 3; " in said and "on 8 GPUs" in said
    alone = TrainingSetup(model="llama3.2-1b", recipe="adam_8bit", microbatch=8, flash=False)
    assert smallest_change(alone, 40e9) is None
    assert "Together: " in answer.advice(alone, 40e9)
    # Where both need more, the single one is named.
    assert answer.changes(LLAMA, 80e9) == [smallest_change(LLAMA, 80e9)]


def test_where_nothing_helps_it_says_so():
    long = dataclasses.replace(calc.MODELS["narayanan-1t"], context=131072)
    enormous = TrainingSetup(model=long, microbatch=1)
    assert answer.changes(enormous, 24e9) == []
    assert "->" not in answer.advice(enormous, 24e9)


def test_a_bar_is_as_long_as_its_bytes_and_a_line_is_the_device():
    fits, stages = dataclasses.replace(LLAMA, tp=2), calc.footprints(LARGE)
    fullest = max(map(float, stages))
    for setup, capacity, scale in ((fits, 80e9, 80e9), (LARGE, 12e9, fullest)):
        html, gpus = answer.bars_html(setup, capacity), answer.shown(setup)
        widths = [float(each) for each in re.findall(r"height: 0.9em; width: ([\d.]+)%", html)]
        for each in gpus.values():
            own = [widths.pop(0) for _ in each.parts]
            assert own == [round(100 * float(part) / scale, 2) for part in each.parts.values()]
        assert not widths
        assert html.count(f"left: {100 * capacity / scale:.2f}%") == len(gpus)
        assert f"of the device, {calc.bytes_text(capacity)}" in html
    assert f"{calc.bytes_text(fullest - 12e9)} over" in html
    assert f"{calc.bytes_text(80e9 - float(footprint(fits)))} left" in answer.bars_html(fits, 80e9)


def test_the_text_is_aligned_and_ends_with_the_advice():
    lines = answer.text(LARGE, 80e9).splitlines()
    assert lines[-1] == answer.advice(LARGE, 80e9)
    how = lines[0].index("how")
    assert all(line[how - 3 : how].isspace() and line[how] != " " for line in lines[:-1])
    assert all(line == line.rstrip() for line in lines)


# --- the widget ----------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """Record the setups that the widget draws, instead of drawing."""
    setups = []

    def bars_html(setup, capacity):
        setups.append(setup)
        return repr((setup, capacity))

    module = importlib.import_module("labkit.notebook.memory")
    monkeypatch.setattr(module, "bars_html", bars_html)
    return setups


def test_it_shows_bars_a_table_and_the_verdict():
    shown = memory_calculator(LLAMA)
    assert shown._bars.value == answer.bars_html(LLAMA, 80e9)
    assert "53.9 GB" in shown._table.value
    assert shown.says == answer.advice(LLAMA, 80e9)
    assert "It does not fit" in shown._verdict.value


def test_a_knob_changes_everything_and_not_the_stored_form(drawn):
    shown = memory_calculator(LLAMA)
    stored = repr(shown)
    shown._knobs["tp"].value = 2
    assert shown.setup == dataclasses.replace(LLAMA, tp=2)
    assert shown.says.startswith("It fits")
    assert drawn == [LLAMA, shown.setup]
    assert shown._bars.value == repr((shown.setup, 80e9))
    assert repr(shown) == stored


@pytest.mark.usefixtures("drawn")
def test_every_field_of_a_setup_has_a_knob_that_moves_it():
    shown = memory_calculator(LLAMA)
    moved = {
        "model": "gpt2", "recipe": "fp32", "zero": 1, "dp": 2, "tp": 2, "pp": 2, "microbatch": 2,
        "sequence": 1024, "recompute": "full", "flash": False, "sequence_parallel": True,
    }  # fmt: skip
    without = {"cp", "virtual", "num_microbatches", "fused", "loss", "reshard_after_forward"}
    without |= {
        "recompute_every",
        "shards",
        "offload",
        "frozen_bytes",
        "adapter_rank",
        "adapter_targets",
        "gathered_inputs",
        "stage_buffers",
    }
    assert set(moved) | without == {each.name for each in dataclasses.fields(TrainingSetup)}
    for name, value in moved.items():
        shown._knobs[name].value = value
    assert shown.setup == TrainingSetup(**moved)
    shown._knobs["sequence"].value = 0
    assert shown.setup.sequence is None


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("device", answer.DEVICES)
def test_another_device_is_another_verdict(device):
    shown = memory_calculator(LLAMA)
    shown._device.value = device
    assert shown.says == answer.advice(LLAMA, answer.DEVICES[device])


@pytest.mark.usefixtures("drawn")
def test_the_button_makes_the_change_that_is_named_and_then_it_fits():
    for model in ("llama2-7b", "llama2-70b"):
        shown = memory_calculator(model)
        assert shown._change.layout.display is None
        shown._change.click()
        assert shown.says.startswith("It fits")
        assert shown._change.layout.display == "none"
        shown._change.click()
        assert shown.says.startswith("It fits"), "nothing to change, nothing changed"


def test_the_button_redraws_once(drawn):
    shown = memory_calculator("llama2-70b")
    del drawn[:]
    shown.make_the_change()
    assert drawn == [shown.setup]


@pytest.mark.usefixtures("drawn")
def test_a_setup_that_cannot_be_says_why_and_the_next_one_is_shown_again():
    shown = memory_calculator("gpt2-xl")  # 25 heads
    shown._knobs["tp"].value = 2
    assert shown.setup is None
    assert "tp=2 does not divide 25 heads; give 1, 5 or 25" in shown.says
    assert shown._table.value == shown._bars.value == ""
    shown.make_the_change()
    shown._knobs["tp"].value = 1
    assert shown.setup == TrainingSetup(model="gpt2-xl")
    assert shown._bars.value


@pytest.mark.usefixtures("drawn")
def test_more_tokens_than_learned_positions_are_said_in_the_place_of_bars():
    shown = memory_calculator("gpt2")
    shown._knobs["sequence"].value = 131072
    assert "sequence=131072" in shown.says and "1024" in shown.says
    assert shown._table.value == shown._bars.value == ""
    shown._knobs["model"].value = "llama2-7b"  # rotations go on
    assert shown.setup == TrainingSetup(model="llama2-7b", sequence=131072)


def test_an_initial_value_between_the_stops_becomes_a_stop():
    config = calc.ModelConfig(layers=6, hidden=512, heads=8, vocab=1000, context=700)
    recipe = calc.Recipe(name="mine", parameter_bytes=2, gradient_bytes=2, moment_bytes=(4, 4))
    own = TrainingSetup(model=config, recipe=recipe, dp=6, zero=2, microbatch=3, sequence=500)
    shown = memory_calculator(own, "24 GB")
    assert shown.setup == own
    assert repr(shown).startswith("your own (19.8M), mine (12 B)")
    stops = [stop for _, stop in shown._knobs["dp"].options]
    assert 6 in stops and stops == sorted(stops)


def test_every_model_on_the_menu_can_be_calculated():
    shown = memory_calculator()
    for _, name in shown._knobs["model"].options:
        assert footprint(TrainingSetup(model=name)) > 0
    assert "mixtral-8x7b" not in [name for _, name in shown._knobs["model"].options]


def test_without_a_browser_it_is_a_text():
    data = memory_calculator(LARGE)._repr_mimebundle_()
    assert data["text/plain"].startswith("llama2-70b (69B), zero_paper (16 B)\n")
    assert "stage 7" in data["text/plain"]
    assert data["text/html"].startswith("<") and "Run this cell" in data["text/html"]


@pytest.mark.parametrize(
    ("start", "device", "error", "said"),
    [
        (7, "80 GB", TypeError, "TrainingSetup"),
        ("llama9", "80 GB", ValueError, "none of gpt2"),
        ("gpt2", [80], ValueError, r"\[80\].* 24 GB"),
        ("gpt2", "80", ValueError, "24 GB, 40 GB, 80 GB, 141 GB"),
        ("mixtral-8x7b", "80 GB", ValueError, "experts"),
    ],
)
def test_an_impossible_initial_value_is_refused(start, device, error, said):
    with pytest.raises(error, match=said):
        memory_calculator(start, device)
