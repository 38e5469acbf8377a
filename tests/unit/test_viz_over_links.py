"""Times over bandwidths: every measured point, every prediction, and the links by name."""

import pytest
from matplotlib.colors import to_hex

from labkit import calc, viz
from labkit.calc.result import Result
from labkit.viz import style

MEASURED = {
    "all-reduce": {1e9: 0.042, 1e8: 0.22, 2.5e8: 0.11},
    "overlapped": [(1e8, 0.081), (1e8, 0.085), (1e9, 0.021)],
}
LINKS = {"NVLink": 450e9, "InfiniBand": 50e9, "PCIe 5": 64e9}


def seconds(bytes_per_s):
    return 0.02 + 2e7 / bytes_per_s


def dots(picture):
    """{(colour, marker): [(bytes/s, seconds), ...]} of what has markers."""
    lines = [line for line in picture.axes[0].lines if line.get_marker() != "None"]
    assert all(line.get_linestyle() == "None" for line in lines)
    return {(to_hex(line.get_color()), line.get_marker()): pairs(line) for line in lines}


def lines(picture):
    """{colour: [(bytes/s, seconds), ...]} of what is drawn through."""
    found = [line for line in picture.axes[0].lines if line.get_linestyle() in ("-", "--")]
    return {to_hex(line.get_color()): pairs(line) for line in found}


def marks(picture):
    """The bandwidths of the vertical lines."""
    found = [line for line in picture.axes[0].lines if line.get_linestyle() == ":"]
    assert all(len(set(line.get_xdata())) == 1 for line in found)
    return [line.get_xdata()[0] for line in found]


def pairs(line):
    return [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata())]


def said(picture):
    texts = [*picture.texts, *picture.axes[0].texts]
    texts += [text for legend in picture.legends for text in legend.get_texts()]
    return [text.get_text() for text in texts if text.get_text()]


def tick_labels(axis):
    low, high = axis.get_view_interval()
    found = zip(axis.get_majorticklocs(), axis.get_ticklabels())
    return [label.get_text() for place, label in found if low <= place <= high]


def test_every_measured_point_is_a_dot_in_the_colour_of_its_series():
    looks = style.series(list(MEASURED))
    expected = {
        (looks["all-reduce"].colour, looks["all-reduce"].marker): [
            (1e8, 0.22),
            (2.5e8, 0.11),
            (1e9, 0.042),
        ],
        (looks["overlapped"].colour, looks["overlapped"].marker): MEASURED["overlapped"],
    }
    assert dots(viz.over_links(MEASURED)) == expected
    assert lines(viz.over_links(MEASURED)) == {}


def test_a_prediction_is_a_line_through_what_its_function_says():
    picture = viz.over_links(MEASURED, {"overlapped": seconds}, marks=LINKS)
    ((colour, line),) = lines(picture).items()
    assert colour == style.series(list(MEASURED))["overlapped"].colour
    assert colour in {of for of, _ in dots(picture)}
    assert (line[0][0], line[-1][0]) == (pytest.approx(1e8), pytest.approx(450e9))
    assert len(line) > 100 and all(y == seconds(x) for x, y in line)


def test_predictions_may_be_results_of_the_calculator_and_stand_alone():
    picture = viz.over_links(
        {}, {"model": lambda speed: Result(2e7 / speed, "seconds")}, marks={"a": 1e8, "b": 1e9}
    )
    (line,) = lines(picture).values()
    assert line[0] == (1e8, pytest.approx(0.2)) and line[-1] == (1e9, pytest.approx(0.02))
    assert dots(picture) == {}


def test_both_axes_are_logarithmic_and_speak_in_units():
    picture = viz.over_links({"a": [(5e7, 0.5), (2e10, 0.002)]}, title="a step")
    axes = picture.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    picture.canvas.draw()
    assert tick_labels(axes.xaxis) == ["100 MB/s", "1 GB/s", "10 GB/s"]
    assert tick_labels(axes.yaxis) == ["10 ms", "100 ms"]
    assert "a step" in said(picture)


def test_links_have_lines_at_their_bandwidths_and_names():
    picture = viz.over_links(MEASURED, marks=LINKS)
    assert marks(picture) == list(LINKS.values())
    axes = picture.axes[0]
    assert {text.get_text() for text in axes.texts} == set(LINKS)
    low, high = axes.get_xlim()
    assert low < 1e8 and high > 450e9


def test_the_legend_shows_what_there_is_of_each_series():
    picture = viz.over_links(
        {"both": {1e8: 1.0}, "dots": {1e9: 1.0}}, {"both": seconds, "line": seconds}
    )
    shown = {
        line.get_label(): (line.get_marker() != "", line.get_linestyle() != "None")
        for line in picture.legends[0].get_lines()
    }
    assert {"both", "dots", "line"} <= set(said(picture))
    assert list(shown.values()) == [(True, True), (True, False), (False, True)]


ONE = {"a": {1e9: 1.0}}


@pytest.mark.parametrize(
    ("measured", "more", "error", "match"),
    [
        ({}, {}, ValueError, "0 series"),
        ({str(n): {1e9: 1.0} for n in range(10)}, {}, ValueError, "10 series: .* 1 to 9"),
        ({"a": {}}, {}, ValueError, r"measured\['a'\]"),
        ({"a": {0: 1.0}}, {}, ValueError, "bandwidth of .*=0.0"),
        ({"a": {1e9: 0.0}}, {}, ValueError, "seconds"),
        ({"a": {1e9: calc.amount("5 GB")}}, {}, TypeError, "seconds"),
        (ONE, {"marks": {"NVLink": -1}}, ValueError, r"marks\['NVLink'\]=-1"),
        (ONE, {"predicted": {"a": seconds}}, ValueError, "1 GB/s alone"),
        ({}, {"predicted": {"a": seconds}}, ValueError, "there is none"),
        (
            {"a": {1e8: 1.0, 1e9: 1.0}},
            {"predicted": {"a": lambda speed: 5e8 - speed}},
            ValueError,
            r"predicted\['a'\] at .*/s=-",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(measured, more, error, match):
    with pytest.raises(error, match=match):
        viz.over_links(measured, **more)
