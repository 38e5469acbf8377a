"""Pictures of serving: a cell for each entry of a pass, and a point for each load."""

import pytest

from labkit import viz
from labkit.serving import ScheduledTokens

PREEMPTED = [
    [ScheduledTokens(3, [1, 2, 3], 0), ScheduledTokens(8, [4], 0)],
    [ScheduledTokens(3, [5], 3), ScheduledTokens(8, [6], 1)],
    [ScheduledTokens(3, [7], 4)],
    [ScheduledTokens(8, [4, 6, 9], 0)],
    [ScheduledTokens(8, [1], 3)],
]
CHUNKED = [
    [ScheduledTokens(0, [1, 2], 0)],
    [ScheduledTokens(0, [3, 4], 2)],
    [ScheduledTokens(0, [5], 4)],
]
PROMPT, AGAIN, TOKEN = "#d55e00", "#e69f00", "#a9c6e3"


def boxes(axes):
    """(row, column) -> colour and number of each cell of a grid."""
    numbers = {(text.get_position()[1] // 1, text.get_position()[0] // 1): text.get_text()
               for text in axes.texts}  # fmt: skip
    found = {}
    for box in axes.patches:
        place = box.get_y() // 1, box.get_x()
        colour = "#" + "".join(f"{round(255 * each):02x}" for each in box.get_facecolor()[:3])
        found[place] = colour, numbers.get(place, "")
    return found


def test_a_cell_is_a_prompt_with_its_tokens_a_new_token_or_computed_again():
    grid, bars = viz.passes({"preempting": PREEMPTED}).axes
    assert boxes(grid) == {
        (0, 0): (PROMPT, "3"),
        (0, 1): (TOKEN, ""),
        (0, 2): (TOKEN, ""),
        (1, 0): (PROMPT, "1"),
        (1, 1): (TOKEN, ""),
        (1, 3): (AGAIN, "3"),
        (1, 4): (TOKEN, ""),
    }
    of_pass = [0] * 5
    for bar in bars.patches:
        of_pass[int(bar.get_x())] += bar.get_height()
    assert of_pass == [4, 2, 1, 3, 1]


def test_the_legend_has_what_is_in_the_picture():
    entries = [
        len(viz.passes({"a": schedule}).legends[0].get_texts()) for schedule in (PREEMPTED, CHUNKED)
    ]
    assert entries == [4, 2]  # two kinds less: computed again, and passes between


def test_chunks_of_a_prompt_are_prompts_and_columns_of_all_panels_are_equally_wide():
    picture = viz.passes({"preempting": PREEMPTED, "chunked": CHUNKED})
    first, _, second, _ = picture.axes
    assert [boxes(second)[0, column][0] for column in range(3)] == [PROMPT, PROMPT, TOKEN]
    assert first.get_xlim() == second.get_xlim()
    assert "5 passes" in picture.caption and "3 passes" in picture.caption


def test_a_load_curve_has_the_points_and_its_prediction_the_same_colour():
    points = [(10.0, 0.01), (50.0, 0.03), (60.0, 1.0)]
    axes = viz.latency_throughput({"TTFT": points}, {"TTFT": points[:2]}, target_s=0.05).axes[0]
    measured, predicted, target = axes.lines
    assert list(zip(*measured.get_data(), strict=True)) == points
    assert predicted.get_color() == measured.get_color()
    assert predicted.get_linestyle() == "--"
    assert list(target.get_ydata()) == [0.05, 0.05]


def test_a_load_curve_does_not_double_back_and_has_ticks_within_a_decade():
    axes = viz.latency_throughput({"TTFT": [(10.0, 0.012), (60.0, 0.08), (50.0, 0.03)]}).axes[0]
    assert list(axes.lines[0].get_xdata()) == [10, 50, 60]
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


@pytest.mark.parametrize("draw", [viz.passes, viz.latency_throughput])
@pytest.mark.parametrize("nothing", [{}, {"continuous": []}])
def test_nothing_to_draw_is_refused(draw, nothing):
    with pytest.raises(ValueError, match="give {"):
        draw(nothing)
