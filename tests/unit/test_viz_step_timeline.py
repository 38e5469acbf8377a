"""The timeline of a simulated step: a box per operation where it is, and the longest path."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex

from labkit import calc, viz
from labkit.calc.pieces import Pieces
from labkit.pipeline import Kind
from labkit.viz import style
from labkit.viz.schedule_parts import operation_colour
from labkit.viz.steps import chosen


def step_of(pp, *disturbances, world_size=64, m=4, virtual=1, **other):
    num = pp * virtual
    parts = Pieces(
        forward_s=(0.1,) * num,
        backward_s=(0.2,) * num,
        send_s=0.01,
        reduce_s=(0.25,) * num,
        gather_s=(0.1,) * num,
        optimizer_s=0.08,
        num_microbatches=m,
        **other,
    )
    layout = calc.Layout(world_size=world_size, tp=2, pp=pp, virtual=virtual)
    return calc.simulate.step(parts, layout, disturbances)


STEPS = {
    "calm": step_of(4),
    "straggler": step_of(2, calc.simulate.Straggler(5, 1.5)),
    "interleaved": step_of(4, calc.simulate.SlowNode([1], 3), virtual=2),
    "no pipeline": step_of(1, calc.simulate.Jitter(0.1)),
}


def drawn(axes):
    (boxes,) = [
        each
        for each in axes.collections
        if isinstance(each, PolyCollection) and each.get_zorder() == 2
    ]
    for path, colour in zip(boxes.get_paths(), boxes.get_facecolors(), strict=True):
        (left, top), (right, _) = path.vertices.min(0), path.vertices.max(0)
        yield int(top), left, right, to_hex(colour)


def colour_of(step, span):
    after = {
        "reduce": style.kind_family("all_reduce").colour,
        "gather": style.kind_family("all_gather").colour,
        "optimizer": "#83a8cd",
    }
    if span.kind in after:
        return after[span.kind]
    return operation_colour(Kind(span.kind), span.stage // step.layout.pp, step.layout.virtual)


@pytest.mark.parametrize("name", STEPS)
def test_every_span_has_a_box_where_it_is_in_the_colours_of_schedules(name):
    step = STEPS[name]
    axes = viz.simulated_step(step).axes[0]
    expected = [
        (row, span.start_s, span.end_s, colour_of(step, span))
        for row, each in enumerate(chosen(step, 12))
        for span in each.spans
    ]
    found = list(drawn(axes))
    per_second = axes.get_xlim()[1] / step.seconds
    assert [(row, colour) for row, *_, colour in found] == [
        (row, colour) for row, *_, colour in expected
    ]
    np.testing.assert_allclose(
        [box[1:3] for box in found], per_second * np.array([box[1:3] for box in expected])
    )


@pytest.mark.parametrize("name", STEPS)
def test_rows_are_named_and_say_how_many_ranks_they_stand_for(name):
    step = STEPS[name]
    axes = viz.simulated_step(step).axes[0]
    assert [each.get_text() for each in axes.get_yticklabels()] == [
        each.name for each in chosen(step, 12)
    ]
    reported = [text.get_text() for text in axes.texts]
    assert reported == [f"{each.num_ranks:,} ranks" for each in chosen(step, 12)]


def test_the_longest_path_runs_from_the_first_second_to_the_last():
    axes = viz.simulated_step(STEPS["straggler"]).axes[0]
    (lines,) = [each for each in axes.collections if isinstance(each, LineCollection)]
    times = np.array([segment[:, 0] for segment in lines.get_segments()])
    assert times.min() == 0
    assert times.max() == pytest.approx(axes.get_xlim()[1])


def test_header_tells_time_path_and_whom_all_wait_for():
    step = STEPS["straggler"]
    header = [text.get_text() for text in viz.simulated_step(step).texts]
    assert "64 ranks, 1F1B" in header[0]
    assert header[1:] == [line.rstrip(".") for line in step.words]
    assert header[3].startswith("Rank 5 (pp 0, dp 2, tp 1)") and "1.5" in header[3]


def test_of_many_classes_the_disturbed_and_the_edges_are_drawn():
    step = step_of(16, calc.simulate.Straggler(100, 1.5), world_size=1024, m=16)
    assert len(step.classes) == 32
    rows = chosen(step, 6)
    assert len(rows) == 6
    disturbed = [each for each in step.classes if each.is_disturbed]
    assert disturbed and all(each in rows for each in disturbed)
    assert {0, 15} <= {each.pp for each in rows}
    assert len(viz.simulated_step(step, rows=6).axes[0].get_yticklabels()) == 6


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="rows=2"):
        viz.simulated_step(step_of(4, m=2000))
