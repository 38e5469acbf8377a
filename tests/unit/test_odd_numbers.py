"""Infinite, undefined and negative numbers, and what is no run: refused by name, with a remedy."""

import math

import pytest

from labkit import calc, viz
from labkit.notebook import TrafficCost, calculator, predict, reveal
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
    with pytest.raises(TypeError, match="pass a TrafficCost, or laptop"):
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
