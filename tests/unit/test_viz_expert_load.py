"""Bars are as long as the experts' counts, and the busiest rank is pointed out."""

import pytest

from labkit import viz
from labkit.moe import ExpertLoad, experts_by_rank
from labkit.viz import style

KEPT = ((10, 2, 0, 4, 1), (8, 3, 1, 0, 2), (12, 1, 0, 2, 0))
DROPPED = ((3, 0, 0, 0, 0), (0, 0, 0, 0, 0), (5, 1, 0, 0, 0))
LOAD = ExpertLoad(KEPT, DROPPED, experts_by_rank(5, 3))


def bars(picture):
    """(rank, first, length, hatched) of each segment."""
    (axes,) = picture.axes
    return [
        (
            round(bar.get_y() + bar.get_height() / 2 - 0.5),
            bar.get_x(),
            bar.get_width(),
            bar.get_hatch(),
        )
        for bar in axes.patches
    ]


def test_a_segment_is_an_expert_on_its_rank_and_what_it_dropped_is_hatched():
    assert bars(viz.load_of_experts(LOAD)) == [
        (0, 0, 30, None),
        (0, 30, 6, None),
        (0, 36, 9, "////"),
        (1, 0, 1, None),
        (1, 1, 6, None),
        (2, 0, 3, None),
    ]


def test_the_mean_is_drawn_and_the_busiest_rank_is_in_the_colour_of_an_alarm():
    picture = viz.load_of_experts(LOAD)
    (axes,) = picture.axes
    (mean,) = axes.lines
    assert mean.get_xdata()[0] == pytest.approx(46 / 3)
    words = {text.get_text().strip(): text.get_color() for text in axes.texts}
    assert words["36, 2.35 x the mean"] == style.ALARM
    assert words["7, 0.46 x the mean"] == words["3, 0.20 x the mean"] == style.INK
    assert "9 dropped" in picture.caption and "2.35 x" in picture.caption


def test_no_tokens_at_all_can_be_drawn():
    load = ExpertLoad(((0, 0),) * 2, ((0, 0),) * 2, experts_by_rank(2, 2))
    texts = viz.load_of_experts(load).axes[0].texts
    assert any("0.00 x" in text.get_text() for text in texts)


def test_what_is_no_load_is_refused():
    many = ExpertLoad(((1,) * 17,) * 17, ((0,) * 17,) * 17, experts_by_rank(17, 17))
    with pytest.raises(ValueError, match="17 ranks"):
        viz.load_of_experts(many)


def test_imbalance_is_a_smoothed_line_for_each_way_between_balanced_and_most():
    picture = viz.imbalance_curves({"nothing": [4.0] * 20, "a bias": [4.0, 2.0, 1.5]}, most=4)
    (axes,) = picture.axes
    balanced, most, nothing, bias = (line.get_ydata() for line in axes.lines)
    assert (balanced[0], most[0]) == (1, 4)
    assert list(nothing) == [4.0] * 20
    assert list(bias) == [4.0, 3.0, 2.5]
    assert [text.get_text() for text in axes.texts][2:] == ["nothing", "a bias"]
    assert axes.get_ylim()[0] == 0 and "a bias 2.5" in picture.caption


@pytest.mark.parametrize("by_step", [{}, {"a loss": []}])
def test_imbalance_without_steps_is_refused(by_step):
    with pytest.raises(ValueError, match="no steps"):
        viz.imbalance_curves(by_step, most=4)
