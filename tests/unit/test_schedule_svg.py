"""A schedule as SVG: what is drawn where, what is read aloud, and what is refused."""

import base64
import re
import xml.etree.ElementTree as ElementTree

import pytest

from labkit.notebook.schedule_svg import schedule_image, schedule_svg
from labkit.pipeline import (
    Costs,
    gpipe,
    interleaved,
    one_f_one_b,
    parse,
    plan,
    simulate,
    zero_bubble_h1,
)
from labkit.viz.schedule_parts import operation_colour

NO_BACKWARD = {"input_gradient": 0, "weight_gradient": 0}
SVG = "{http://www.w3.org/2000/svg}"


def drawn(timing):
    return ElementTree.fromstring(schedule_svg(timing))


def words(root):
    return [each.text for each in root.iter(f"{SVG}text")]


def boxes(root, colour):
    """Left, top and width of the boxes of a colour."""
    paths = [each for each in root.iter(f"{SVG}path") if f"fill: {colour};" in each.get("style")]
    found = [re.findall(r"M(\S+) (\S+)h(\S+?)v", path.get("d")) for path in paths]
    return [tuple(map(float, corner)) for corners in found for corner in corners]


def test_a_box_is_where_its_operation_is_in_time():
    timing = simulate(plan(one_f_one_b, 2, 2), Costs(send=1))
    root = drawn(timing)
    per_time = (760 - 46 - 76) / timing.makespan
    rows = [list(row) for row in timing.rows]
    for kind in "FB":
        spans = [(rank, s) for rank, row in enumerate(rows) for s in row if s.op.kind == kind]
        expected = [
            (46 + s.start * per_time, 62 + (rank + 0.12) * 30, (s.end - s.start) * per_time)
            for rank, s in spans
        ]
        found = boxes(root, operation_colour(spans[0][1].op.kind))
        assert sorted(found) == [pytest.approx(each, abs=0.1) for each in sorted(expected)]


def test_each_box_has_the_number_of_its_microbatch_where_there_is_room():
    found = words(drawn(plan(gpipe, 2, 3)))
    assert [found.count(number) for number in "013"] == [5, 4, 0]  # "0" is on the axis too
    crowded = words(drawn(plan(gpipe, 2, 99)))
    assert crowded.count("98") == 0 and crowded.count("1") == 0


def test_ranks_axis_legend_bubble_and_memory_are_written():
    said = words(drawn(plan(one_f_one_b, 4, 8)))
    for word in (
        "1F1B, 4 ranks, 8 microbatches",
        "F: forward",
        "B: backward",
        "idle: the bubble",
        "makespan 33, bubble 27.3% of total time = 37.5% of ideal time",
        "rank 3",
        "at most 4",
        "30",
        "time (in the unit of the costs)",
    ):
        assert word in said
    assert "message" not in said and "W: weight gradient" not in said
    assert "W: weight gradient" in words(drawn(plan(zero_bubble_h1, 2, 2)))


def test_messages_that_take_time_are_arrows_as_long_as_there_are_few():
    assert "message" in words(drawn(simulate(plan(one_f_one_b, 2, 4), Costs(send=0.5))))
    assert "message" not in words(drawn(simulate(plan(one_f_one_b, 2, 40), Costs(send=0.5))))


def test_stages_of_a_rank_differ_in_shade():
    root = drawn(plan(interleaved, 2, 2, virtual=2))
    first, second = (operation_colour(parse("F0").rows[0][0].kind, n, 2) for n in (0, 1))
    assert boxes(root, first) and boxes(root, second) and first != second
    assert "the lighter, the later of a rank's stages" in words(root)


def test_a_screen_reader_gets_a_title_and_each_rank_in_order():
    root = drawn(parse("F0 F1 B0 B1\nF0 B0 F1 B1", "<mine>"))
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == "Schedule of <mine>, 2 ranks, 2 microbatches"
    assert root.find(f"{SVG}desc").text.endswith("rank 0: F0 F1 B0 B1; rank 1: F0 B0 F1 B1")
    long = drawn(plan(gpipe, 1, 50)).find(f"{SVG}desc").text
    assert long.endswith("F39 and 60 more")


def test_several_may_stand_on_a_page():
    svg = schedule_svg(simulate(plan(one_f_one_b, 2, 4), Costs(send=0.5)))
    assert " id=" not in svg and "url(" not in svg
    assert "var(--jp-content-font-color1" in svg and "var(--jp-border-color2" in svg


def test_an_image_holds_the_same_and_its_words():
    given = parse("F0 B0", '"quoted"')
    image = schedule_image(given)
    data = re.search(r"data:image/svg\+xml;base64,([^\"]+)", image)[1]
    assert base64.b64decode(data).decode() == schedule_svg(given)
    assert "Schedule of &quot;quoted&quot;, 1 rank, 1 microbatch: makespan 3" in image


@pytest.mark.parametrize(
    ("end", "ticks"),
    [
        (0.007, ["0", "0.001", "0.002", "0.003", "0.004", "0.005", "0.006", "0.007"]),
        (33.0, ["0", "5", "10", "15", "20", "25", "30"]),
        (1300.0, ["0", "200", "400", "600", "800", "1000", "1200"]),
    ],
)
def test_the_axis_has_round_numbers(end, ticks):
    root = drawn(simulate(plan(gpipe, 1, 1), Costs(forward=end, **NO_BACKWARD)))
    assert words(root)[-1 - len(ticks) : -1] == ticks


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="takes no time"):
        schedule_svg(simulate(plan(gpipe, 1, 1), Costs(forward=0, **NO_BACKWARD)))
    with pytest.raises(ValueError, match="33 ranks"):
        schedule_svg(plan(gpipe, 33, 1))
    with pytest.raises(TypeError, match="give a Schedule"):
        schedule_svg("F0 B0")
