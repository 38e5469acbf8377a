"""The grid of a schedule: a box for every span, where it is, in the colour of its kind."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.text import Annotation
from test_viz_timeline import VISIONS, lab

from labkit import viz
from labkit.pipeline import (
    Costs,
    Kind,
    Op,
    Schedule,
    ScheduleError,
    Span,
    Timing,
    gpipe,
    in_flight,
    interleaved,
    naive,
    one_f_one_b,
    parse,
    plan,
    simulate,
    zero_bubble_h1,
)
from labkit.viz import schedule_input
from labkit.viz.in_flight_curve import held_over_time
from labkit.viz.schedule_drawing import outline
from labkit.viz.schedule_parts import operation_colour

UNEVEN = Costs(forward=[0.5, 1, 1, 2], input_gradient=[1, 1, 0, 2], send=0.25)
SLOW_LAST = [0.5, 1, 1, 2]
TIMINGS = {
    "1F1B": simulate(plan(one_f_one_b, 4, 8)),
    "GPipe": simulate(plan(gpipe, 3, 4)),
    "naive": simulate(plan(naive, 2, 3)),
    "ZB-H1": simulate(plan(zero_bubble_h1, 4, 5), UNEVEN),
    "interleaved": simulate(plan(interleaved, 4, 8, virtual=2), Costs(send=0.5)),
    "uneven": simulate(
        plan(one_f_one_b, 4, 8),
        Costs(forward=SLOW_LAST, input_gradient=SLOW_LAST, weight_gradient=SLOW_LAST, send=0.4),
    ),
    "one rank": simulate(plan(one_f_one_b, 1, 1)),
}


def in_seconds(timing, *, slower=0.01, from_s=1000.0):
    """The same spans as somebody's clock would show them; nothing is known of messages."""
    rows = tuple(
        tuple(Span(op, from_s + slower * start, from_s + slower * end) for op, start, end in row)
        for row in timing.rows
    )
    return Timing(timing.schedule, rows)


def drawn(axes):
    """(rank, left, right, colour) of every box, by rank and time; frames of rows are no boxes."""
    collections = [each for each in axes.collections if isinstance(each, PolyCollection)]
    (boxes,) = [each for each in collections if each.get_zorder() == 2]
    found = []
    for path, colour in zip(boxes.get_paths(), boxes.get_facecolors(), strict=True):
        (left, top), (right, bottom) = path.vertices.min(0), path.vertices.max(0)
        rank = int(top)
        assert rank < top < bottom < rank + 1
        found.append((rank, left, right, to_hex(colour)))
    return sorted(found)


def numbers(axes):
    """(x, rank, number) of all that is written into boxes."""
    known = {id(outline(str(number))): number for number in range(200)}
    return [
        (x, int(y), known[id(path)])
        for each in axes.collections
        if isinstance(each, PathCollection)
        for (x, y), path in zip(each.get_offsets(), each.get_paths(), strict=True)
    ]


def header(picture):
    return [text.get_text() for text in picture.texts]


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


@pytest.mark.parametrize("name", TIMINGS)
def test_every_span_has_a_box_where_and_as_long_as_it_runs(name):
    timing = TIMINGS[name]
    picture = viz.schedule(timing)
    found = drawn(picture.axes[0])
    spans = sorted((rank, span.start, span.end) for rank, span in timing.spans())
    np.testing.assert_allclose([box[:3] for box in found], spans)
    for (rank, _, end, _), (next_rank, start, _, _) in itertools.pairwise(found):
        assert rank < next_rank or end <= start, "two boxes of a rank overlap"
    assert picture.axes[0].get_xlim() == (0, timing.makespan)


@pytest.mark.parametrize("name", TIMINGS)
def test_every_box_has_the_number_of_its_microbatch_in_its_middle(name):
    timing = TIMINGS[name]
    too_narrow = 0.5 if name == "uneven" else 0  # for type that can be read
    expected = {
        (round((span.start + span.end) / 2, 6), rank): span.op.microbatch
        for rank, span in timing.spans()
        if span.end - span.start > too_narrow
    }
    shown = numbers(viz.schedule(timing).axes[0])
    assert {(round(x, 6), rank): number for x, rank, number in shown} == expected


def test_colours_are_of_the_kind_and_shades_of_a_ranks_stages():
    timing = TIMINGS["ZB-H1"]
    assert colours_by(timing, lambda rank, op: op.kind) == {
        kind: {operation_colour(kind)} for kind in (Kind.F, Kind.I, Kind.W)
    }
    timing = TIMINGS["interleaved"]
    assert colours_by(timing, lambda rank, op: (op.kind, op.stage // 4)) == {
        (kind, place): {operation_colour(kind, place, 2)}
        for kind in (Kind.F, Kind.B)
        for place in (0, 1)
    }


def colours_by(timing, key):
    boxes = drawn(viz.schedule(timing).axes[0])
    spans = sorted(timing.spans(), key=lambda each: (each[0], each[1].start, each[1].end))
    found = {}
    for (rank, span), (*_, colour) in zip(spans, boxes, strict=True):
        found.setdefault(key(rank, span.op), set()).add(colour)
    return found


@pytest.mark.parametrize("vision", VISIONS)
def test_kinds_differ_for_every_eye_and_in_print(vision):
    for one, other in itertools.combinations(Kind, 2):
        places = itertools.product(range(2), repeat=2)
        for mine, theirs in places:
            colours = operation_colour(one, mine, 2), operation_colour(other, theirs, 2)
            seen = [lab(colour, vision) for colour in colours]
            assert np.linalg.norm(seen[0] - seen[1]) > 14, colours
    lightness = [lab(operation_colour(kind), vision)[0] for kind in Kind]
    assert np.diff(sorted(lightness)).min() > 5
    for kind in Kind:
        shades = [lab(operation_colour(kind, place, 2), vision) for place in range(2)]
        assert np.linalg.norm(shades[0] - shades[1]) > 14 and shades[0][0] < shades[1][0]


def test_the_header_has_the_bubble_by_both_conventions_and_the_legend_what_is_there():
    picture = viz.schedule(TIMINGS["1F1B"])
    assert header(picture)[0].startswith("1F1B")
    (bubble,) = (text for text in header(picture) if "bubble" in text)
    assert re.findall(r"[\d.]+%?", bubble) == ["33", "27.3%", "37.5%"]
    assert [text.split(":")[0] for text in legend(picture)] == ["F", "B", "idle"]
    picture = viz.schedule(TIMINGS["ZB-H1"], title="mine")
    assert header(picture)[0] == "mine"
    assert [text.split(":")[0] for text in legend(picture)] == ["F", "I", "W", "idle", "message"]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (plan(one_f_one_b, 4, 8), ["4", "3", "2", "1"]),
        (plan(zero_bubble_h1, 3, 8), ["3", "3", "3"]),
        (plan(interleaved, 2, 4, virtual=2), ["5/2", "3/2"]),
    ],
)
def test_beside_each_row_is_what_the_rank_holds_at_most(schedule, said):
    for picture in (viz.schedule(schedule), viz.in_flight(schedule)):
        texts = [text.get_text() for text in picture.axes[0].texts]
        assert [text.split()[-1] for text in texts if text] == said
    assert [int(most.split("/")[0]) for most in said] == in_flight(schedule)


def test_what_was_measured_is_below_on_its_own_axis_in_the_same_colours():
    timing = TIMINGS["1F1B"]
    late = in_seconds(simulate(timing.schedule, Costs(send=1)))
    picture = viz.schedule(timing, late)
    above, below = picture.axes
    assert below.get_xlabel() == "time (ms)" and above.get_xlabel() != "time (ms)"
    assert below.get_xlim() == pytest.approx((0, 1e3 * late.makespan))
    spans = sorted((rank, 1e3 * (s.start - 1000), 1e3 * (s.end - 1000)) for rank, s in late.spans())
    np.testing.assert_allclose([box[:3] for box in drawn(below)], spans, atol=1e-6)
    assert [box[3] for box in drawn(below)] == [box[3] for box in drawn(above)]
    said = [text for text in header(picture) if "bubble" in text]
    bubbles = [f"{late.bubble(convention):.1%}" for convention in ("total", "ideal")]
    assert re.findall(r"[\d.]+%", said[1]) == bubbles


def test_simulated_and_measured_are_on_one_scale():
    timing = TIMINGS["GPipe"]
    same = viz.schedule(timing, in_seconds(timing, slower=0.01))
    assert same.axes[0].get_xlim() == pytest.approx((0, timing.makespan))
    later = in_seconds(timing, slower=0.01)
    *rows, last = later.rows
    waits = [*last[:-1], Span(last[-1].op, last[-1].start + 5, last[-1].end + 5)]
    picture = viz.schedule(timing, Timing(later.schedule, (*rows, tuple(waits))))
    above, below = (drawn(axes)[0] for axes in picture.axes)  # the first box of rank 0
    ends = [axes.get_xlim()[1] for axes in picture.axes]
    assert (above[2] - above[1]) / ends[0] == pytest.approx((below[2] - below[1]) / ends[1])
    assert ends[0] > 10 * timing.makespan


def test_the_caption_has_no_times_of_a_measurement():
    timing = TIMINGS["1F1B"]
    captions = {repr(viz.schedule(timing, in_seconds(timing, slower=s))) for s in (0.01, 0.3)}
    assert len(captions) == 1 and "1F1B, 4 ranks, 8 microbatches" in captions.pop()


def test_a_schedule_is_simulated_at_a_cost_of_one_each():
    schedule = plan(gpipe, 3, 4)
    assert viz.schedule(schedule).png() == viz.schedule(simulate(schedule)).png()


# --- messages and numbers ------------------------------------------------------------------------


def arrows(axes):
    return [text for text in axes.texts if isinstance(text, Annotation)]


def test_messages_that_take_time_are_arrows_from_an_end_to_an_arrival():
    timing = simulate(plan(one_f_one_b, 3, 4), Costs(send=[0.5, 0.25]))
    shown = arrows(viz.schedule(timing).axes[0])
    ends = sorted((arrow.xyann[0], arrow.xy[0]) for arrow in shown)
    assert ends == sorted((span.start, span.end) for span in timing.sends)
    rank_of = timing.schedule.rank_of
    by_time = {(span.start, span.end): span.op for span in timing.sends}
    for arrow in shown:
        op = by_time[arrow.xyann[0], arrow.xy[0]]
        there = op.stage + (1 if op.kind is Kind.F else -1)
        assert (int(arrow.xyann[1]), int(arrow.xy[1])) == (rank_of[op.stage], rank_of[there])


def test_messages_that_cost_nothing_or_are_too_many_are_not_drawn():
    free = viz.schedule(plan(one_f_one_b, 3, 4))
    many = viz.schedule(simulate(plan(one_f_one_b, 4, 16), Costs(send=1)))
    for picture in (free, many):
        assert not arrows(picture.axes[0]) and "message" not in legend(picture)


# --- in flight -----------------------------------------------------------------------------------


def test_the_curve_is_what_a_rank_holds_at_each_moment():
    timing = in_seconds(simulate(plan(one_f_one_b, 2, 3)), slower=1, from_s=7)
    # F0 F1 - B0 F2 - B1 - B2, each F 1 long, each B 2
    assert held_over_time(timing.rows[0], 7) == [(0, 1), (1, 2), (6, 2), (9, 1), (12, 0)]
    assert held_over_time(timing.rows[1], 7) == [(0, 0), (1, 1), (4, 1), (7, 1), (10, 0)]


def test_a_split_backward_is_in_flight_until_its_weights_gradient():
    (row,) = simulate(parse("F0 I0 F1 I1 W0 W1")).rows
    assert held_over_time(row) == [(0, 1), (2, 2), (5, 1), (6, 0)]


@pytest.mark.parametrize("name", TIMINGS)
def test_the_highest_step_of_a_curve_is_its_peak(name):
    timing = TIMINGS[name]
    peaks = [max(held for _, held in held_over_time(row)) for row in timing.rows]
    assert peaks == in_flight(timing.schedule)


# --- limits and refusals -------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [viz.schedule, viz.in_flight])
def test_what_cannot_be_read_is_refused_at_once_with_the_limits(draw, monkeypatch):
    """Before it is simulated or drawn."""
    huge = plan(gpipe, 64, 256)
    monkeypatch.setattr(schedule_input, "simulate", None)
    with pytest.raises(ValueError, match="32,768.* 32 ranks and 8,192"):
        draw(huge)
    with pytest.raises(ValueError, match="33 ranks"):
        draw(plan(gpipe, 33, 1))


def test_what_is_no_step_is_refused():
    with pytest.raises(ScheduleError, match="B0"):
        viz.schedule(parse("B0 F0"))


def test_a_measurement_of_another_schedule_is_refused_and_the_difference_named():
    timing = simulate(plan(one_f_one_b, 4, 8))
    with pytest.raises(ValueError, match="4 micro.*8 micro"):
        viz.schedule(timing, in_seconds(simulate(plan(one_f_one_b, 4, 4))))
    other = in_seconds(simulate(plan(gpipe, 4, 8)))
    with pytest.raises(ValueError, match="operation 4 of rank 0 is F4 .*B0"):
        viz.schedule(timing, other)


def test_another_name_for_the_same_operations_is_no_other_schedule():
    timing = simulate(plan(naive, 2, 1))
    same = parse("F0 B0\nF0 B0", name="mine")
    assert len(viz.schedule(timing, in_seconds(simulate(same))).axes) == 2


F0, B0 = Op(Kind.F, 0, 0), Op(Kind.B, 0, 0)
STEP = parse("F0 B0")


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (simulate(STEP, Costs(forward=0, input_gradient=0, weight_gradient=0)), "no time"),
        (Timing(Schedule("empty", ((),), 0, 0), ((),)), "empty"),
    ],
)
def test_times_that_cannot_be_drawn_are_refused(timing, said):
    for draw in (viz.schedule, viz.in_flight):
        with pytest.raises(ValueError, match=said):
            draw(timing)
    if timing.schedule is STEP:
        with pytest.raises(ValueError, match=said):
            viz.schedule(STEP, timing)
