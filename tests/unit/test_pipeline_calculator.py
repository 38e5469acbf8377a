"""The pipeline calculator: each knob changes what it should, and what cannot be is said."""

import dataclasses
import functools

import pytest

from labkit import calc
from labkit.notebook import pipeline as answer
from labkit.notebook import pipeline_calculator
from labkit.notebook.pipeline import PipelineAnswer, PipelineSetup, own_schedule
from labkit.notebook.schedule_svg import schedule_image, schedule_svg
from labkit.pipeline import Costs, ScheduleError, interleaved, one_f_one_b, plan, simulate, text

CLOSED = {"naive": "naive", "GPipe": "gpipe", "1F1B": "1f1b", "ZB-H1": "zb_h1"}


# --- what it says --------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", CLOSED)
def test_times_and_memory_are_those_of_the_closed_forms(schedule):
    given = PipelineAnswer(PipelineSetup(schedule, ranks=4, microbatches=12))
    for place, convention in ((2, "total"), (3, "ideal")):
        closed = calc.bubble_fraction(4, 12, CLOSED[schedule], relative_to=convention)
        assert given.times()[place][:2] == [f"bubble, of {convention}", f"{closed.value:.1%}"]
    if schedule != "ZB-H1":
        held = calc.in_flight_microbatches(4, 12, CLOSED[schedule])
        assert given.memory()[1:] == [
            ["in flight, at most", *map(str, held)],
            ["activations", *(calc.bytes_text(1e9 * most) for most in held)],
        ]


def test_virtual_stages_do_not_change_the_work_of_a_rank():
    given = PipelineAnswer(PipelineSetup("interleaved", ranks=4, microbatches=8, virtual=4))
    closed = calc.bubble_fraction(4, 8, "interleaved", virtual=4)
    assert given.timing.bubble() == pytest.approx(closed.value)
    assert given.times()[1] == ["ideal", "24", "the work alone: 8 x (1 + 2) = 24"]
    held = calc.in_flight_microbatches(4, 8, "interleaved", virtual=4)
    assert given.held == [f"{most}/4" for most in held]
    assert given.held_bytes == [most * 1e9 / 4 for most in held]


def test_zero_bubble_v_has_two_stages_per_rank_whatever_the_knob_says():
    given = PipelineAnswer(PipelineSetup("ZB-V", ranks=4, microbatches=8, virtual=4))
    closed = calc.bubble_fraction(4, 8, "zb_v")
    assert given.timing.bubble() == pytest.approx(closed.value)
    assert given.times()[1] == ["ideal", "24", "the work alone: 8 x (1 + 2) = 24"]
    assert given.held == ["8/2"] * 4 and given.num_operations == 3 * 4 * 2 * 8
    assert given.note == ""


def test_costs_are_in_forwards_of_a_rank():
    setup = PipelineSetup(ranks=3, microbatches=5, backward=3, send=0.5)
    costs = Costs(forward=1, input_gradient=2, weight_gradient=1, send=0.5)
    assert PipelineAnswer(setup).timing == simulate(plan(one_f_one_b, 3, 5), costs)
    setup = dataclasses.replace(setup, schedule="interleaved", microbatches=6)
    halves = Costs(forward=0.5, input_gradient=1, weight_gradient=0.5, send=0.5)
    assert PipelineAnswer(setup).timing == simulate(plan(interleaved, 3, 6, virtual=2), halves)


@pytest.mark.parametrize(
    ("backward", "halves"),
    [(0, (0, 0)), (1, (0.5, 0.5)), (2, (1, 1)), (2.5, (1.5, 1)), (3, (2, 1))],
)
def test_recomputation_comes_before_the_input_gradient(backward, halves):
    rows = PipelineAnswer(PipelineSetup("ZB-H1", backward=backward)).timing.rows
    for kind, cost in zip("IW", halves):
        lasts = {span.end - span.start for row in rows for span in row if span.op.kind == kind}
        assert lasts == {cost}


def test_recomputation_takes_from_zero_bubble_what_it_adds_to_the_input_gradient():
    given = PipelineAnswer(PipelineSetup("ZB-H1", ranks=4, microbatches=8, backward=3))
    assert given.times()[0][1] == "38" and given.times()[2][1] == "15.8%"


@pytest.mark.parametrize(
    ("ranks", "microbatches", "used"),
    [(4, 9, 8), (4, 11, 12), (4, 10, 12), (4, 1, 4), (8, 3, 8), (7, 32, 35), (1, 5, 5), (4, 8, 8)],
)
def test_interleaved_takes_the_nearest_multiple_and_says_so(ranks, microbatches, used):
    given = PipelineAnswer(PipelineSetup("interleaved", ranks, microbatches))
    assert given.schedule.num_microbatches == given.setup.microbatches == used
    said = f"{microbatches} is no multiple of {ranks}: {used} are used."
    assert given.note.endswith(said) if used != microbatches else given.note == ""


def test_interleaved_with_one_stage_per_rank_is_called_what_it_is():
    given = PipelineAnswer(PipelineSetup("interleaved", virtual=1))
    assert "is 1F1B" in given.note
    assert given.timing.rows == PipelineAnswer(PipelineSetup("1F1B")).timing.rows


def test_the_text_is_aligned_and_ends_with_the_headline():
    given = PipelineAnswer(PipelineSetup("interleaved", ranks=4, microbatches=9))
    lines = given.text().splitlines()
    assert lines[0].split()[:2] == ["makespan", "28.5"]
    assert lines[4].split() == ["rank", "0", "rank", "1", "rank", "2", "rank", "3"]
    assert len({len(line) for line in lines[4:7]}) == 1
    assert lines[-2:] == [given.note, given.headline]
    for fact in ("15.8% of total", "18.8% of ideal", "rank 0", "11/2 microbatches", "5.5 GB"):
        assert fact in given.headline


# --- the widget ----------------------------------------------------------------------------------


def shown(widget):
    """All that a reader sees: picture, sentence, tables."""
    return widget._picture.value, widget._says.value, widget._table.value


def test_it_shows_the_grid_of_its_schedule():
    widget = pipeline_calculator()
    timing = simulate(plan(one_f_one_b, 4, 8))
    assert widget.answer.timing.rows == timing.rows
    assert schedule_svg(timing) in widget._picture.value
    assert widget.answer.headline in widget._says.value


MOVES = {
    "schedule": "GPipe",
    "ranks": 5,
    "microbatches": 16,
    "virtual": 3,
    "backward": 1.0,
    "send": 0.5,
    "activation_bytes": 2e9,
}


@pytest.mark.parametrize("name", MOVES)
def test_each_knob_changes_what_it_should_and_not_the_stored_form(name):
    start = {"schedule": "interleaved", "ranks": 4, "microbatches": 20}
    widget = pipeline_calculator(**start)
    stored, before = repr(widget), shown(widget)
    widget._knobs[name].value = MOVES[name]
    setup = PipelineSetup(**start | {name: MOVES[name]})
    assert widget.answer.asked == setup
    picture, says, table = shown(widget)
    assert widget.says in says and table != before[2]
    assert schedule_svg(PipelineAnswer(setup).timing) in picture
    assert (picture != before[0]) == (name != "activation_bytes")
    assert repr(widget) == stored


@functools.cache
def knobs():
    return pipeline_calculator()._knobs


def test_every_field_of_a_setup_has_a_knob():
    names = {field.name for field in dataclasses.fields(PipelineSetup)}
    assert set(MOVES) == set(knobs()) == names


def test_virtual_stages_can_be_moved_only_where_they_mean_something():
    widget = pipeline_calculator()
    disabled = []
    for schedule in answer.SCHEDULES:
        widget._knobs["schedule"].value = schedule
        disabled.append(widget._knobs["virtual"].disabled)
    assert disabled == [schedule != "interleaved" for schedule in answer.SCHEDULES]


@pytest.mark.parametrize("end", [0, -1])
@pytest.mark.parametrize("schedule", answer.SCHEDULES)
def test_both_ends_of_all_knobs_are_shown(schedule, end):
    ends = {name: knob.options[end][1] for name, knob in knobs().items() if name != "schedule"}
    assert 1_000 < len(pipeline_calculator(schedule, **ends)._picture.value) < 250_000


def test_an_impossible_combination_is_explained_and_the_next_one_is_shown():
    widget = pipeline_calculator("interleaved")
    widget._knobs["microbatches"].value = 9
    assert "9 is no multiple of 4" in widget._says.value
    widget._knobs["schedule"].value = "1F1B"
    assert "multiple" not in widget._says.value
    assert widget.answer.schedule.num_microbatches == 9


def test_an_initial_value_between_the_stops_becomes_a_stop():
    widget = pipeline_calculator("GPipe", ranks=12, microbatches=40, send=0.15)
    assert widget.answer.asked == PipelineSetup("GPipe", 12, 40, send=0.15)
    stops = [stop for _, stop in widget._knobs["send"].options]
    assert 0.15 in stops and stops == sorted(stops)


def test_without_a_browser_it_is_a_text_and_a_picture():
    widget = pipeline_calculator("ZB-H1")
    data = widget._repr_mimebundle_()
    assert data["text/plain"].startswith("schedule of ZB-H1, 4 ranks, 8 microbatches\nmakespan ")
    assert data["text/plain"] == repr(pipeline_calculator("ZB-H1"))
    assert schedule_image(widget.answer.timing) in data["text/html"]
    assert widget.answer.headline in data["text/html"]


@pytest.mark.parametrize(
    ("start", "error", "said"),
    [
        ({"schedule": "2F2B"}, ValueError, "schedule='2F2B': .* 1F1B"),
        ({"ranks": 0}, ValueError, "ranks=0"),
        ({"microbatches": 2.5}, TypeError, "microbatches=2.5"),
        ({"send": float("inf")}, ValueError, "send=inf"),
        ({"backward": -1}, ValueError, "backward=-1"),
        ({"stages": 4}, TypeError, "stages.* ranks"),
        ({"ranks": 64}, ValueError, "64 ranks .* 32 ranks"),
    ],
)
def test_an_impossible_initial_value_is_refused(start, error, said):
    with pytest.raises(error, match=said):
        pipeline_calculator(**start)


@pytest.mark.parametrize("schedule", answer.SCHEDULES)
@pytest.mark.parametrize(
    "start",
    [{"microbatches": 10**12}, {"ranks": 10**12}, {"microbatches": 10**6, "virtual": 10**6}],
)
def test_more_than_can_be_drawn_is_refused_before_it_is_planned(schedule, start, monkeypatch):
    monkeypatch.setattr(answer, "plan", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(ValueError, match="32 ranks and 8,192"):
        pipeline_calculator(schedule, **start)


@pytest.mark.parametrize("schedule", answer.SCHEDULES)
def test_operations_are_counted_without_their_schedule(schedule):
    given = PipelineAnswer(PipelineSetup(schedule, ranks=3, microbatches=7, virtual=3))
    assert given.num_operations == sum(map(len, given.schedule.rows))


# --- a schedule of one's own ---------------------------------------------------------------------


@pytest.mark.parametrize("schedule", answer.SCHEDULES)
def test_a_schedule_that_is_written_out_and_drawn_is_the_same(schedule):
    widget = pipeline_calculator(schedule, send=0.2, backward=2.5)
    rows, table = widget.answer.timing.rows, widget._table.value
    widget.write_out()
    assert widget._rows.value == text(widget.answer.schedule)
    widget.draw()
    assert widget.answer.timing.rows == rows and widget._table.value == table
    assert widget.says.startswith("Your own schedule, at the costs of the knobs. Bubble ")


def test_an_own_schedule_keeps_to_the_costs_and_gives_way_to_another_schedule():
    widget = pipeline_calculator()
    widget._rows.value = "F0 F1 B0 B1\nF0 B0 F1 B1"
    widget.draw()
    assert widget.answer.timing.makespan == 9 and widget.answer.held == ["2", "1"]
    widget._knobs["backward"].value = 1.0
    assert widget.answer.timing.makespan == 6 and "2 ranks" in widget._picture.value
    widget._knobs["activation_bytes"].value = 2e9
    assert widget.answer.held_bytes == [4e9, 2e9]
    widget._knobs["ranks"].value = 5
    assert widget.answer.setup.ranks == 5 and "Your own" not in widget.says
    widget._knobs["send"].value = 0.5
    assert widget.answer.setup.ranks == 5


def test_a_rank_with_more_stages_computes_each_in_less_time():
    given = PipelineAnswer(PipelineSetup(), own_schedule("F0@0 F0@1 B0@1 B0@0\nF0@2 B0@2"))
    assert given.timing.busy == [3.0, 3.0]
    assert given.held == ["2/2", "1"] and given.held_bytes == [1e9, 1e9]


def test_what_is_no_step_is_explained_and_the_picture_stays():
    widget = pipeline_calculator()
    before = shown(widget)
    widget._rows.value = "F0 B0\nB0 F0"
    widget.draw()
    assert "rank 1 has B0 before F0" in widget._trouble.value
    assert "rank 1 [B0] F0" in widget._trouble.value and shown(widget) == before
    widget._rows.value = "<b>"
    widget.draw()
    assert "&lt;b&gt;" in widget._trouble.value and shown(widget) == before
    widget._rows.value = "F0 B0"
    widget.draw()
    assert widget._trouble.value == "" and shown(widget) != before


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ("", ValueError, "no lines"),
        ("F0 B0\nF0", ScheduleError, "B0 of stage 1 is missing"),
        ("F0@0 B0@0\nF0@1 F0@2 B0@2 B0@1\n\n F0@3 B0@3", ValueError, "rank 2 has no operation"),
        ("\n".join(["F0 B0"] * 33), ValueError, "33 ranks .* 32 ranks"),
        ("F0@99999999999 B0@99999999999", ScheduleError, "missing"),
    ],
)
def test_rows_that_are_no_schedule_are_refused(rows, error, said):
    with pytest.raises(error, match=said):
        own_schedule(rows)
