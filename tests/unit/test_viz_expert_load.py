"""Who has how much to do: bars are as long as the counts, and the busiest rank is pointed out."""

import io
import re

import pytest
from PIL import Image

from labkit import viz
from labkit.moe import ExpertLoad, held_by_ranks
from labkit.viz import style

KEPT = ((10, 2, 0, 4, 1), (8, 3, 1, 0, 2), (12, 1, 0, 2, 0))
DROPPED = ((3, 0, 0, 0, 0), (0, 0, 0, 0, 0), (5, 1, 0, 0, 0))
LOAD = ExpertLoad(KEPT, DROPPED, held_by_ranks(5, 3))


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


def said(picture):
    return [text.get_text().strip() for text in picture.axes[0].texts]


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
    assert "9 dropped; busiest 2.35 x the mean" in picture.caption


def test_names_of_experts_are_written_where_they_fit():
    assert "expert 0: 30" in said(viz.load_of_experts(LOAD))
    assert not any(text.startswith("expert 2") for text in said(viz.load_of_experts(LOAD)))


def test_a_number_alone_is_never_the_number_of_an_expert():
    narrow = ExpertLoad(((40, 1, 2, 3),), ((0, 0, 0, 0),), held_by_ranks(4, 1))
    for load in (LOAD, narrow):
        assert not any(re.match(r"[0-9]+(:|$)", text) for text in said(viz.load_of_experts(load)))
    assert "e3" in said(viz.load_of_experts(narrow))


def test_nothing_is_drawn_over_the_edge_and_the_file_is_small():
    uneven = tuple((9000 if e == 5 else 700) for e in range(48))
    large = ExpertLoad((uneven,) * 12, ((0,) * 48,) * 12, held_by_ranks(48, 12))
    for load in (LOAD, large):
        picture = viz.load_of_experts(load)
        picture.canvas.draw()
        for text in (*picture.axes[0].texts, *picture.texts):
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= picture.bbox.x1 and box.y1 <= picture.bbox.y1
        png = picture.png()
        assert len(png) < 100_000
        assert Image.open(io.BytesIO(png)).size[0] == 1800


def test_no_tokens_at_all_can_be_drawn():
    load = ExpertLoad(((0, 0),) * 2, ((0, 0),) * 2, held_by_ranks(2, 2))
    assert "0.00 x the mean" in " ".join(said(viz.load_of_experts(load)))


def test_what_is_no_load_is_refused():
    with pytest.raises(TypeError, match="give what labkit.moe.expert_load returned"):
        viz.load_of_experts([1, 2])
    many = ExpertLoad(((1,) * 17,) * 17, ((0,) * 17,) * 17, held_by_ranks(17, 17))
    with pytest.raises(ValueError, match="17 ranks"):
        viz.load_of_experts(many)
