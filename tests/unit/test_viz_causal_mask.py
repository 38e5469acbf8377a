"""The causal mask's picture: the area of a rank's colour is the number of scores it computes."""

import pytest
from matplotlib.colors import to_hex

from labkit import calc, viz
from labkit.context_parallel import contiguous, zigzag
from labkit.viz import style

PLACEMENTS = {"contiguous": contiguous, "zigzag": zigzag}


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_the_area_of_a_colour_is_the_scores_that_calc_counts(num_ranks):
    picture = viz.causal_work(PLACEMENTS, num_ranks)
    for axes, name in zip(picture.axes, PLACEMENTS, strict=True):
        areas = dict.fromkeys(map(style.rank_colour, range(num_ranks)), 0.0)
        for bar in axes.patches:
            areas[to_hex(bar.get_facecolor())] += bar.get_width() * bar.get_height()
        expected = [
            float(calc.context_score_elements(8 * num_ranks, num_ranks, rank, placement=name))
            for rank in range(num_ranks)
        ]
        assert list(areas.values()) == expected


def test_placements_are_named_and_too_many_ranks_are_refused():
    picture = viz.causal_work(PLACEMENTS, 4)
    assert [axes.get_title(loc="left") for axes in picture.axes] == list(PLACEMENTS)
    with pytest.raises(ValueError, match="num_ranks=9: 1 to 8"):
        viz.causal_work(PLACEMENTS, 9)
    with pytest.raises(ValueError, match="0 placements"):
        viz.causal_work({}, 4)
