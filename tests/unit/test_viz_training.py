"""Pictures of training: lines, ages of gradients, powers of two, and a loss scale."""

import pytest
import torch

from labkit import viz
from labkit.data_parallel.parameter_server import Arrival


def test_panels_of_curves_share_their_axes_and_the_look_of_a_name():
    picture = viz.curves(
        {"one": {"a": {2: 1.0, 1: 3.0}}, "other": {"b": [(0, 9.0)], "a": {4: 2.0}}},
        xlabel="s",
        ylabel="loss",
        title="losses",
    )
    left, right = picture.axes
    assert left.get_xlim() == right.get_xlim() and left.get_ylim() == right.get_ylim()
    assert left.get_xlim()[0] == 0
    assert list(left.lines[0].get_xdata()) == [1, 2]
    assert left.lines[0].get_color() == right.lines[1].get_color() != right.lines[0].get_color()


def test_logarithmic_curves_count_in_powers_of_two():
    lines = {"": {"a": {2: 1.0, 1024: 1e-3}}}
    (axes,) = viz.curves(lines, xlabel="n", ylabel="B", title="bytes", log=True).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_measured_points_have_markers_and_a_line_of_many_has_none():
    lines = {"": {"a": {2: 1.0, 1024: 1e-3}}}
    marked, plain = (
        viz.curves(lines, xlabel="n", ylabel="B", title="bytes", markers=markers).axes[0].lines[0]
        for markers in (True, False)
    )
    assert marked.get_marker() == "o" and not plain.get_marker()


def test_a_legend_with_room_above_covers_no_line():
    lines = {"": {name: {0: 1.0, 10: 1.0} for name in ("one", "other")}}
    picture = viz.curves(lines, xlabel="n", ylabel="B", title="bytes")
    (axes,) = picture.axes
    picture.draw_without_rendering()
    assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1


def arrival(worker, staleness, is_used=True):
    return Arrival(worker, 0.1, 2.0, staleness, is_used)


def test_ages_are_stacked_by_worker_and_dropped_gradients_do_not_count():
    came = [arrival(1, 0), arrival(2, 2), arrival(1, 2), arrival(2, 9, is_used=False)]
    (axes,) = viz.staleness({"two workers": came}, title="ages").axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[1, 0, 1], [0, 0, 1]]
    assert axes.lines[0].get_xdata()[0] == pytest.approx(4 / 3)


def test_exponents_are_shares_of_what_is_not_zero():
    numbers = torch.tensor([0.0, 1.5, -1.0, 1.5 * 2.0**-26, 1.5 * 2.0**-25])
    assert (numbers.half() == 0).tolist() == [True, False, False, True, False]
    picture = viz.exponents(numbers, title="numbers")
    (axes,) = picture.axes
    heights = {round(bar.get_x() + 0.45): bar.get_height() for bar in axes.containers[0]}
    assert {power: share for power, share in heights.items() if share} == {-26: 25, -25: 25, 0: 50}
    assert "25% are 0 in float16" in picture.caption


def test_skipped_steps_have_a_cross():
    picture = viz.loss_scale([4.0, 3.0, 3.0], [False, True, True], title="scale")
    crosses = picture.axes[0].lines[-1]
    assert (list(crosses.get_xdata()), list(crosses.get_ydata())) == ([0], [4.0])
    assert "1 of 3 steps skipped" in picture.caption


SEVEN = {"": {str(name): {1: 1.0} for name in range(7)}}


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: viz.curves({}, xlabel="x", ylabel="y", title="t"), "nothing to draw"),
        (lambda: viz.curves({"a": {"b": {}}}, xlabel="x", ylabel="y", title="t"), "nothing to"),
        (lambda: viz.curves(SEVEN, xlabel="x", ylabel="y", title="t"), "7 lines: .* up to 6"),
        (lambda: viz.staleness({"a": [arrival(1, 0, False)]}, title="t"), "no gradient"),
        (lambda: viz.exponents(torch.zeros(3), title="t"), "all numbers are 0"),
        (lambda: viz.loss_scale([1.0], [], title="t"), "1 scales and 0 steps"),
    ],
)
def test_nothing_to_draw_is_refused_and_too_much(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()


@pytest.mark.parametrize("most", [0.55, 2.0, 30.0, 9000.0])
def test_a_logarithmic_axis_has_ticks_however_short_it_is(most):
    lines = {"line": {2**17: 0.4, 2**25: most}}
    picture = viz.curves({"": lines}, xlabel="x", ylabel="y", title="t", log=True)
    (axes,) = picture.axes
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2
    assert axes.xaxis.get_major_formatter()(2**20, 0) == "1.05M"
