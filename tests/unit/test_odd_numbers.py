"""Infinite, undefined and negative numbers, and what is no run: refused by name, with a remedy."""

import math

import pytest

from labkit import calc, viz
from labkit.notebook import (
    TrafficCost,
    cache_calculator,
    calculator,
    design_round,
    draw,
    knobs,
    layout_planner,
    pipeline_calculator,
    predict,
    reveal,
    schedule_puzzle,
)
from labkit.notebook.traffic import PRESETS

NODE = PRESETS["one node: 8 GPUs"]
NONSENSE = [math.inf, -math.inf, math.nan]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("write", "unit"),
    [(calc.bytes_text, " B"), (calc.seconds_text, " s"), (calc.count_text, "")],
)
def test_a_text_shows_what_is_no_number_without_a_prefix(write, unit):
    assert [write(value) for value in NONSENSE] == [f"{x}{unit}" for x in ("inf", "-inf", "nan")]


@pytest.mark.parametrize("value", [math.nan, -1])
@pytest.mark.parametrize("field", NODE.__dataclass_fields__)
def test_a_ring_that_cannot_be_is_refused(field, value):
    fields = {name: getattr(NODE, name) for name in NODE.__dataclass_fields__}
    with pytest.raises(ValueError, match=f"{field}={value}"):
        calculator(TrafficCost(**fields | {field: value}))


def test_a_collective_of_half_a_rank_is_refused():
    with pytest.raises(ValueError, match=r"world_size=2\.5"):
        TrafficCost(1e9, 4, 2.5, 1, 1e9, 0)


@pytest.mark.parametrize("start", [None, 8, {"world_size": 8}])
def test_a_calculator_starts_with_a_cost(start):
    with pytest.raises(TypeError, match="give a TrafficCost, or one of laptop"):
        calculator(start)


@pytest.mark.parametrize("value", NONSENSE)
def test_nobody_measures_what_is_no_number(value):
    with pytest.raises(ValueError, match=f"{value} is no measurement"):
        reveal("x", value, unit="B")
    with pytest.raises(ValueError, match=f"{value} is no measurement"):
        predict("x", answer=value)
    with pytest.raises(ValueError, match=f"tolerance={value}"):
        predict("x", tolerance=value)
    with pytest.raises(ValueError, match=f"tolerance={value}"):
        reveal("x", 1, tolerance=value)


def test_bytes_and_seconds_are_never_negative():
    for unit in ("B", "ms"):
        with pytest.raises(ValueError, match="-2"):
            reveal("x", -2, unit=unit)
    assert "Measured: -2." in repr(reveal("x", -2))


@pytest.mark.parametrize("typed", ["inf", "nan", "-inf", "1e999"])
def test_a_reader_who_types_them_gets_an_error(typed):
    said = predict("x", "How many?").commit(typed)
    assert "try" in said and "Committed" not in said


@pytest.mark.parametrize("run", [None, [None]])
def test_what_is_no_run_has_no_timeline(run, tmp_path):
    with pytest.raises(TypeError, match=type(run).__name__):
        viz.timeline(run)
    with pytest.raises(TypeError, match="timelines"):
        viz.chrome_trace.write(run, tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.parametrize(
    ("show", "error", "named"),
    [
        (lambda: cache_calculator(weight_bits="x"), TypeError, "weight_bits='x'"),
        (lambda: cache_calculator(cache_bits=0), ValueError, "cache_bits=0"),
        (lambda: calculator(TrafficCost("a", 2, 8, 1, 1e9, 0)), TypeError, "num_parameters='a'"),
        (lambda: TrafficCost(1e9, 2, True, 1, 1e9, 0), TypeError, "world_size=True"),
        (lambda: TrafficCost(1e9, 2, 8, 1, 1e9, 0, ["ring"]), ValueError, "collective="),
        (lambda: pipeline_calculator(send=1e308), ValueError, "send=1e\\+308"),
        (lambda: layout_planner(sequence=1.5), ValueError, "sequence=1.5"),
        (lambda: design_round(3), TypeError, "name=3"),
        (lambda: design_round(model="llama9"), ValueError, "'llama9' is no ModelConfig"),
        (lambda: draw(3), TypeError, "name=3"),
        (lambda: knobs(3), TypeError, "fn=3"),
    ],
)
def test_an_error_names_the_argument_that_was_given(show, error, named):
    with pytest.raises(error, match=named):
        show()


def test_a_puzzle_says_that_a_number_is_no_rows():
    assert "3: give text with a line per rank" in repr(schedule_puzzle("two ranks", 3))
