"""Parts of a page: predictions, tables, the calculator, cells that are meant to fail."""

import dataclasses
import math
import sqlite3
from xml.etree import ElementTree as xml

import nbformat
import pytest
from nbclient import NotebookClient
from nbval.kernel import CURRENT_ENV_KERNEL_NAME

from labkit import calc
from labkit.calc.units import Quantity, in_unit
from labkit.notebook import (
    Row,
    TrafficCost,
    calculator,
    expect_error,
    predict,
    predictions,
    reveal,
    table,
    traffic,
)
from labkit.notebook.predictions import verdict
from labkit.notebook.traffic import _CHOICES, KINDS, PRESETS, chart
from scripts.notebooks import ThisPython


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "_questions", {})
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# --- predict and reveal ------------------------------------------------------------------------


def test_a_prediction_is_compared_with_what_was_measured():
    predict("bytes", "How many?", unit="B").commit("12 KB")
    shown = repr(reveal("bytes", 12_000, unit="B"))
    assert "said 12 KB" in shown and "12,000 B" in shown and "Exactly" in shown
    assert "Measured: 6 MB." in repr(reveal("sent", 6, unit="MB"))


def test_the_answer_repeats_the_question_only_where_this_notebook_has_asked():
    assert "How" not in repr(reveal("steps", 6))
    predict("steps", "How <many>?")
    shown = reveal("steps", 6)
    assert repr(shown).splitlines()[0] == "How <many>?"
    assert "<summary>How &lt;many&gt;? (" in shown.html
    assert "</summary>Measured: 6.</details>" in shown.html  # a stored notebook spoils nothing


def test_a_bare_number_is_repeated_with_the_unit_of_its_question():
    box = predict("bytes", "How many?", unit="B")
    assert "952,832 B" in box.commit("952,832")
    shown = repr(reveal("bytes", 714_624, unit="B"))
    assert "said 952,832 B" in shown and "714,624 B" in shown
    assert "1/3 (" in predict("share", "?", unit="%").commit("1/3")


def test_what_is_not_measured_says_where_it_comes_from_and_does_not_vary():
    shown = reveal("steps", 32, unit="GPU-hours", source="Computed")
    assert repr(shown).startswith("Computed: 32 GPU-hours.")
    assert repr(reveal("wait", 30, unit="min")).startswith("Measured: ~30 min.")


def test_gpu_hours_are_counted():
    box = predict("cost", "How many?", unit="GPU-hours", answer=32)
    assert "Exactly" in box.commit("32") and "Exactly" in box.commit("32 GPU-hours")
    assert "in GPU-hours" in box.commit("30 min")


def test_a_prediction_is_kept_from_session_to_session(home):
    predict("steps", "How many?").commit("6")
    (file,) = home.glob("*.sqlite3")
    ((detail,),) = sqlite3.connect(file).execute("SELECT detail FROM events").fetchall()
    assert '"value": 6.0' in detail
    assert "to 6." in predict("steps", "How many?")._status.value


def test_the_latest_prediction_counts():
    box = predict("steps", "How many?")
    box.commit("3")
    box.commit("6")
    assert "You said 6." in repr(reveal("steps", 6))


def test_the_button_and_the_enter_key_commit():
    box = predict("steps", "How many?")
    box._entry.value = "5"
    box._button.click()
    assert "You said 5." in repr(reveal("steps", 6))
    box._entry.value = "7"
    box._entry._handle_string_msg(None, {"event": "submit"}, None)
    assert "You said 7." in repr(reveal("steps", 6))


def test_a_box_with_an_answer_answers_at_once():
    box = predict("steps", "How many?", answer=6)
    assert "Exactly" in box.commit("6") and "50% too high" in box.commit("9")


def test_days_are_reported_in_days():
    assert "Measured: ~10.71 days." in repr(reveal("days", 10.7113, unit="days"))


def test_nonsense_is_refused_and_not_kept():
    box = predict("steps", "How many?")
    box.commit("sixish")
    assert "sixish" in box._status.value
    assert "sixish" not in repr(reveal("steps", 6))


def test_a_bare_number_is_in_the_unit_of_the_question():
    box = predict("time", "How long?", unit="ms", answer=4.9)
    assert box.commit("4.9").endswith("Exactly right.")
    assert box.commit("4900 us").endswith("ight.")  # exactly, or but for rounding
    assert "in bytes" in box.commit("3 MB")


def test_what_was_typed_is_shown_as_text_not_as_html():
    box = predict("x", "<b>How</b>?")
    box.commit("<script>1</script>")
    assert "<script>" not in box._status.value
    assert "<b>How" not in box._repr_mimebundle_()["text/html"]


def test_where_nothing_can_be_stored_the_session_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning):
        predict("unstored", "How many?").commit("6")
    assert "You said 6." in repr(reveal("unstored", 6))


def test_the_static_form_is_the_same_whatever_was_typed():
    before = predict("steps", "How many?")._repr_mimebundle_()
    box = predict("steps", "How many?")
    box.commit("6")
    after = box._repr_mimebundle_()
    assert {kind: before[kind] for kind in ("text/plain", "text/html")} == {
        kind: after[kind] for kind in ("text/plain", "text/html")
    }
    assert "application/vnd.jupyter.widget-view+json" in after


@pytest.mark.parametrize(
    ("guess", "truth", "tolerance", "words"),
    [
        (6, 6, 0, "Exactly right"),
        (0.1 + 0.2, 0.3, 0, "Right"),
        (5, 5.2, 0.1, "tolerance"),
        (5, 6, 0.1, "17% too low"),
        (9, 6, 0, "50% too high"),
        (30, 6, 0, "5 times too high"),
        (3, 6, 0, "2 times too low. A factor of two"),
        (8e9, 1e9, 0, "8 times too high. A factor of eight"),
        (1024, 1000, 0, "2% too high. KB or KiB"),
        (2**30, 10**9, 0, "7% too high. GB or GiB"),
        (0, 6, 0, "by 6"),
        (6, 0, 0, "by 6"),
        (-6, 6, 0, "by 12"),
    ],
)
def test_a_verdict_says_how_far_off_and_often_why(guess, truth, tolerance, words):
    assert words in verdict(Quantity(guess, ""), Quantity(truth, ""), tolerance)


def test_numbers_of_different_kinds_are_not_compared():
    assert "different things" in verdict(Quantity(6, ""), Quantity(6, "bytes"))


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="furlongs"):
        predict("x", "How far?", unit="furlongs")
    assert in_unit("2/3", "") == Quantity(2 / 3, "")


# --- table -------------------------------------------------------------------------------------


def test_a_table_is_aligned_plain_text():
    rows = [("steps", 6, 6), ("sent by rank 0", 12_000, 12_500, "B"), ("missing", None, 7)]
    assert repr(table(rows)).splitlines() == [
        "                    predicted       measured       residual",
        "steps                       6              6              0",
        "sent by rank 0       12,000 B       12,500 B         +4.2 %",
        "missing                     –              7              –",
    ]


@pytest.mark.parametrize(
    ("row", "predicted", "measured", "residual"),
    [
        (("x", 6, 8), "6", "8", "+2"),
        (("x", 0, 8, "B"), "0 B", "8 B", "+8 B"),
        (("x", 100_000_000, 100_000_001, "B"), "100 MB", "100 MB", "+1 B"),
        (("x", 10, 300, "KB"), "10,000 B", "300,000 B", "30 x"),
        (("x", 43.75, 30.4, "%"), "43.75 %", "30.4 %", "-13.4 points"),
        (("x", 2.5, 5.0), "2.5", "5", "+100.0 %"),
        (("x", 4.9, 5.3, "ms"), "4.9 ms", "~5.3 ms", "~+8.2 %"),
        (Row("x", 1e8, 1.2e8, "B", varies=True), "100 MB", "~120 MB", "~+20.0 %"),
    ],
)
def test_a_row_is_written_in_its_unit(row, predicted, measured, residual):
    shown = table([row])
    assert repr(shown).splitlines()[1].split("  ")[-1].strip() == residual
    for cell in (predicted, measured, residual):
        assert f">{cell}</td>" in shown.html


def test_a_time_that_changes_leaves_the_columns_where_they_are():
    one, other = (repr(table([("time", 1e-3, s, "s"), ("n", 1, 1)])) for s in (5e-3, 123.4567e-3))
    assert one.splitlines()[0] == other.splitlines()[0]
    assert one.splitlines()[2] == other.splitlines()[2]


def test_names_are_text_not_html():
    assert "<b>" not in table([("<b>bold</b>", 1, 1)]).html


def test_a_table_of_a_wrong_form_is_refused():
    with pytest.raises(ValueError, match="furlongs"):
        table([("x", 1, 2, "furlongs")])
    with pytest.raises(TypeError):
        table([("x",)])


# --- calculator --------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_lies_on_the_sliders(preset):
    for name, choices in _CHOICES.items():
        assert getattr(PRESETS[preset], name) in choices


def test_the_calculator_says_what_calc_says():
    cost = TrafficCost(1e9, 1, 8, 100, 360e9, 5e-6)
    each = calc.collective("all_reduce", "ring", 8, 1e7).seconds(5e-6, 1 / 360e9)
    assert cost.seconds == pytest.approx(100 * each)
    values = {name: value for name, value, _ in cost.lines()}
    assert values["each rank sends"] == "1.75 GB"
    assert values["in steps"] == "1,400"
    assert values["time"] == "11.9 ms"
    assert PRESETS["one node: 8 GPUs"].text().count("\n") == 5


def test_a_slider_changes_result_chart_and_preset():
    shown = calculator("one node: 8 GPUs")
    result, drawn = shown._result.value, shown._chart.value
    shown._sliders["world_size"].value = 64
    assert shown.cost.world_size == 64
    assert shown._preset.value == "your own"
    assert "63/64" in shown._result.value and shown._result.value != result
    assert shown._chart.value == chart(shown.cost) != drawn


def test_a_preset_moves_the_sliders_and_draws_once(monkeypatch):
    shown = calculator("one node: 8 GPUs")
    drawn = []
    monkeypatch.setattr(traffic, "chart", lambda cost: drawn.append(cost) or "")
    shown._preset.value = "cluster: 512 GPUs"
    assert drawn == [PRESETS["cluster: 512 GPUs"]]
    assert shown._sliders["world_size"].value == 512
    shown._sliders["world_size"].value = 256
    assert (shown._preset.value, len(drawn)) == ("your own", 2)


def test_the_chart_has_a_point_for_each_cost_on_log_scales_and_words_for_those_who_cannot_see_it():
    cost = PRESETS["one node: 8 GPUs"]
    drawn = xml.fromstring(chart(cost))
    _, _, time = (
        [p.split(",") for p in each.get("points").split()] for each in drawn.iter("polyline")
    )
    costs = traffic.over_ranks(cost, traffic._WORLD_SIZES)
    assert len(time) == len(costs)
    (x0, y0), *_, (x1, y1) = ((float(x), float(y)) for x, y in time)
    assert x1 - x0 == traffic._RIGHT - traffic._LEFT
    labels = {each.text: float(each.get("y")) for each in drawn.iter("text")}
    decade = labels["10 ms"] - labels["100 ms"]
    grown = math.log10(costs[-1].seconds / costs[0].seconds)
    assert y0 - y1 == pytest.approx(decade * grown, abs=0.3)
    (dot,) = drawn.iter("circle")
    assert [dot.get("cx"), dot.get("cy")] == time[list(traffic._WORLD_SIZES).index(8)]
    assert drawn.get("role") == "img" and "ranks" in drawn.find("title").text
    assert f"{calc.seconds_text(costs[0].seconds)} over 2" in drawn.find("desc").text


def test_what_is_below_the_scale_is_not_drawn():
    drawn = xml.fromstring(chart(PRESETS["cluster: 512 GPUs"]))
    latency, _, time = (each.get("points").split() for each in drawn.iter("polyline"))
    assert 0 < len(latency) < len(time)


@pytest.mark.parametrize("name", KINDS)
def test_every_collective_has_the_cost_that_calc_has_and_a_chart(name):
    shown = calculator("one node: 8 GPUs")
    shown._collective.value = name
    assert shown._preset.value == "one node: 8 GPUs"
    operation, _, algorithm = name.partition(" by ")
    each = calc.collective(operation, algorithm, 8, 14e9)
    cost = shown.cost
    assert cost.seconds == each.seconds(5e-6, 1 / 360e9) and cost.sent_bytes == each.sent_bytes
    assert 0 < cost.latency_seconds < cost.seconds
    shares = {"all_reduce": "2 x 7/8 x D"}
    assert shares.get(operation, ">7/8 x D") in shown._result.value
    assert str(calc.busbw(14e9, cost.seconds, 8, operation)) in shown._result.value
    assert f"Time of {name}" in shown._chart.value
    shown._preset.value = "cluster: 512 GPUs"
    assert shown.cost == dataclasses.replace(PRESETS["cluster: 512 GPUs"], collective=name)


@pytest.mark.parametrize("own", [{"num_parameters": 0}, {"latency_s": 0}, {"world_size": 1}])
def test_a_time_of_zero_has_a_chart(own):
    xml.fromstring(chart(dataclasses.replace(PRESETS["one node: 8 GPUs"], **own)))


@pytest.mark.parametrize("name", _CHOICES)
def test_the_ends_of_every_slider_work(name):
    shown = calculator("laptop: 4 processes")
    for value in (_CHOICES[name][0], _CHOICES[name][-1]):
        shown._sliders[name].value = value
        assert getattr(shown.cost, name) == value
        assert "nan" not in shown._chart.value and "<circle" in shown._chart.value or value == 1


def test_an_initial_value_between_the_stops_becomes_a_stop_on_each_slider():
    own = TrafficCost(124_439_808, 4, 5, 3, 1.25e9, 30e-6)
    shown = calculator(own)
    assert shown.cost == own
    assert "your own" in repr(shown)


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="one node: 8 GPUs"):
        calculator("moon base")
    with pytest.raises(ValueError, match="all_reduce by ring"):
        dataclasses.replace(PRESETS["one node: 8 GPUs"], collective="all_reduce by pigeon")


# --- expect_error ------------------------------------------------------------------------------


def test_an_expected_error_is_shown_and_kept(capsys):
    with expect_error(ValueError, match="segment 3") as caught:
        raise ValueError("segment 3 is missing\nsend it")
    assert capsys.readouterr().out == (
        "ValueError, as expected:\n│ segment 3 is missing\n│ send it\n"
    )
    assert isinstance(caught.error, ValueError)


def test_a_long_message_can_be_cut(capsys):
    with expect_error(ValueError, max_lines=1):
        raise ValueError("stable\nvaries")
    assert capsys.readouterr().out == "ValueError, as expected:\n│ stable\n│ ...\n"


def test_a_cell_that_does_not_break_fails():
    with pytest.raises(AssertionError, match="nothing was raised"), expect_error(ValueError):
        pass


def test_another_error_fails_the_cell():
    with (
        pytest.raises(AssertionError, match="ZeroDivisionError came") as failure,
        expect_error(ValueError),
    ):
        1 / 0  # noqa: B018
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


def test_another_message_fails_the_cell():
    with (
        pytest.raises(AssertionError, match="does not contain"),
        expect_error(ValueError, match="rank 2"),
    ):
        raise ValueError("rank 3")


def test_stop_passes_through():
    with pytest.raises(KeyboardInterrupt), expect_error(ValueError):
        raise KeyboardInterrupt


def test_an_error_to_expect_must_be_named():
    with pytest.raises(TypeError, match="at least one"):
        expect_error()


# --- in a kernel without a browser -------------------------------------------------------------

CELLS = [
    "from labkit.notebook import calculator, predict, reveal, table\nfrom labkit import viz",
    "predict('steps', 'How many?')",
    "reveal('steps', 6)",
    "table([('steps', 6, 6)])",
    "calculator()",
    "viz.timeline([])",
    "viz.timeline([]).show()",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(tmp_path_factory.mktemp("home")))
        NotebookClient(
            notebook,
            timeout=600,
            kernel_manager_class=ThisPython,
            kernel_name=CURRENT_ENV_KERNEL_NAME,
        ).execute()
    return [cell.outputs for cell in notebook.cells]


def test_every_widget_shows_itself_once_without_a_browser(executed):
    assert executed[0] == []
    assert [len(outputs) for outputs in executed[1:]] == [1] * 6


@pytest.mark.parametrize("cell", [1, 2, 3, 4])
def test_every_widget_has_a_text_and_an_html_form(executed, cell):
    data = executed[cell][0]["data"]
    assert data["text/plain"] and data["text/html"].startswith("<")


@pytest.mark.parametrize("cell", [5, 6])
def test_a_picture_appears_once_and_in_its_size(executed, cell):
    (output,) = executed[cell]
    assert output["data"].keys() == {"image/png", "text/plain"}
    assert output["metadata"]["image/png"]["width"] == 900


@pytest.mark.parametrize("number", [1, 10, 123])
def test_a_long_verdict_is_cut_at_the_same_words_whatever_its_cells_number(capsys, number):
    sentence = "ranks 0 and 1 wait for each other, " * 4 + f"(cell {number}, line 3) " * 4
    with expect_error(ValueError):
        raise ValueError(sentence)
    shown = capsys.readouterr().out.replace(f"cell {number},", "cell N,")
    lines = shown.splitlines()[1:]
    assert len(lines) > 2 and all(line.startswith("│ ") for line in lines)
    with expect_error(ValueError):
        raise ValueError(sentence.replace(f"cell {number},", "cell 77,"))
    assert capsys.readouterr().out.replace("cell 77,", "cell N,") == shown


def test_what_is_said_of_a_rank_is_wrapped_and_a_table_is_not(capsys):
    said = "  rank 1 raised RuntimeError in all_reduce #2: " + "it read no more " * 8
    row = "  ranks 0 and 2  wait in all_reduce #3  " + "cell 2, line 5  " * 8
    with expect_error(ValueError):
        raise ValueError(f"The others:\n{said}\n{row.rstrip()}")
    first, second, *rest = capsys.readouterr().out.splitlines()[2:]
    assert first.startswith("│   rank 1 raised") and len(first) <= 98
    assert second.startswith("│     ") and len(second) <= 98
    assert rest[-1] == f"│ {row.rstrip()}"
