"""Pictures: what a lane says at each moment, and what the picture then shows."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from labkit import Deadlock, run, viz
from labkit.comm.operation import Region, Site, Timeline
from labkit.profile.activity import Span, doing, in_flight, rows_without_overlap, topmost
from labkit.viz import style
from labkit.viz.lanes import shares
from labkit.viz.rings import contributors
from tests.an_operation import an_operation

HERE = Site("train.py", 12, "step")


def operation(kind, posted_s, waited_s, done_s, **fields):
    return an_operation(kind, posted_s=posted_s, waited_s=waited_s, done_s=done_s, **fields)


def said(picture):
    """Every text in a picture: inside the axes, and around them."""
    texts = [text for axes in picture.axes for text in axes.texts] + picture.texts
    for legend in picture.legends:
        texts += legend.get_texts()
    return [text.get_text() for text in texts if text.get_text()]


def pixel(picture, time, lane, end):
    """Colour at a time in the middle of the main lane, of a picture from 0 to `end`."""
    image = Image.open(io.BytesIO(picture.png())).convert("RGB")
    left, bottom, width, height = picture.axes[0].get_position().bounds
    num_lanes = picture.axes[0].get_ylim()[0]
    x = (left + width * time / end) * image.width
    y = (1 - bottom - height * (1 - (lane + 0.2) / num_lanes)) * image.height
    return "#{:02x}{:02x}{:02x}".format(*image.getpixel((int(x), int(y))))


def arrows(picture):
    return [text for text in picture.axes[0].texts if getattr(text, "arrow_patch", None)]


def overlapped():
    """Rank 0 computes under an all_reduce and then waits for it; rank 1 only computes."""
    first = Timeline(
        [operation("all_reduce", 0.2, 0.6, 0.8)],
        [Region("backward", 0.0, 0.6), Region("layer 1", 0.1, 0.3)],
        0.0,
        1.0,
    )
    return [first, Timeline([], [Region("backward", 0.0, 1.0)], 0.0, 1.0)]


def spans(found):
    return [(span.label, span.start_s, span.end_s) for span in found]


def test_a_rank_does_one_thing_at_a_time():
    assert spans(doing(overlapped()[0], until_s=1.0)) == [
        ("backward", 0.0, 0.1),
        ("layer 1", 0.1, 0.3),
        ("backward", 0.3, 0.6),
        ("all_reduce", 0.6, 0.8),
        (style.OTHER_WORK, 0.8, 1.0),
    ]


def test_what_never_ended_lasts_as_long_as_the_run():
    timeline = Timeline([operation("recv", 0.1, 0.2, None, peer=1)], [Region("a", 0.0, None)])
    timeline.end_s = 0.5
    assert spans(doing(timeline, until_s=2.0)) == [("a", 0.0, 0.2), ("recv", 0.2, 2.0)]


def test_painting_in_order_agrees_with_painting_pixel_by_pixel():
    generator = np.random.default_rng(0)
    for _ in range(50):
        starts = generator.integers(0, 40, size=12)
        layers = [
            Span(int(start), int(start + length), str(number))
            for number, (start, length) in enumerate(zip(starts, generator.integers(0, 15, 12)))
        ]
        canvas = {}
        for layer in layers:
            canvas |= dict.fromkeys(range(layer.start_s, layer.end_s), layer.label)
        shown = {
            second: span.label
            for span in topmost(layers)
            for second in range(span.start_s, span.end_s)
        }
        assert shown == canvas


def test_operations_in_flight_together_get_rows_of_their_own():
    flight = [Span(0, 4, "a"), Span(1, 3, "b"), Span(2, 5, "c"), Span(3, 6, "d"), Span(4, 5, "e")]
    assert rows_without_overlap(flight, max_rows=4) == [0, 1, 2, 1, 0]
    assert rows_without_overlap(flight, max_rows=2) == [0, 1, 1, 1, 0]


def test_shares_of_time_are_exact():
    found = shares([Span(0.0, 0.5, "a"), Span(0.5, 2.5, "b"), Span(3.0, 4.0, "a")], np.arange(5.0))
    np.testing.assert_allclose(found["a"], [0.5, 0, 0, 1])
    np.testing.assert_allclose(found["b"], [0.5, 1, 0.5, 0])


def test_computing_and_waiting_have_their_colours():
    picture = viz.timeline(overlapped())
    assert pixel(picture, 0.5, 0, end=1.0) == style.region_colours(["backward"])["backward"]
    assert pixel(picture, 0.7, 0, end=1.0) == style.kind_family("all_reduce").colour
    assert pixel(picture, 0.7, 1, end=1.0) == style.region_colours(["backward"])["backward"]


def test_a_lane_says_how_much_of_its_time_was_spent_waiting():
    texts = said(viz.timeline(overlapped()))
    assert "20% waiting" in texts and "0% waiting" in texts


def test_a_wait_for_a_thread_of_its_own_is_waiting_and_not_computing():
    journal = Timeline([], [Region("backward", 0.0, 0.6), Region("waits", 0.6, 1.0)], 0.0, 1.0)
    picture = viz.timeline([journal])
    assert {"40% waiting", "the background"} <= set(said(picture))
    assert pixel(picture, 0.8, 0, end=1.0) == style.region_colours(["waits"])["waits"]


def test_the_forwards_of_all_layers_look_alike_and_have_one_name_in_the_legend():
    regions = [Region(f"forward of {layer}", 0.4 * layer, 0.4 * layer + 0.4) for layer in (0, 1)]
    picture = viz.timeline([Timeline([], regions, 0.0, 0.8)])
    forward = style.region_colours(["forward"])["forward"]
    assert [pixel(picture, at, 0, end=0.8) for at in (0.05, 0.45)] == [forward, forward]
    assert said(picture).count("forward") == 1


def test_a_lane_that_ends_before_a_failed_run_says_how_and_not_the_share_of_its_short_life():
    posted = [operation("all_reduce", 0.0, 0.0, 0.1)]
    journals = [Timeline(list(posted), [], 0.0, end_s) for end_s in (0.1, 1.0)]
    positions = ("returned after all_reduce #1", "waits in all_reduce #2")
    picture = viz.timeline(Deadlock("stuck", timeline=journals, positions=positions))
    assert [text for text in said(picture) if text in ("returned", "waits")] == ["returned"]
    assert [text for text in said(picture) if "% waiting" in text] == ["10% waiting"]


def test_the_legend_names_what_there_is_and_nothing_else():
    texts = said(viz.timeline(overlapped()))
    assert {"backward", "layer 1", "all_reduce"} <= set(texts)
    assert not {"send / recv", "never done", "failed", "message"} & set(texts)


@pytest.mark.parametrize(
    ("end_s", "unit"), [(500e-6, "µs"), (5e-3, "ms"), (0.9, "ms"), (12.0, "s")]
)
def test_the_axis_has_a_unit_that_fits(end_s, unit):
    picture = viz.timeline([Timeline([], [], 0.0, end_s)])
    assert picture.axes[0].get_xlabel() == f"time ({unit})"
    assert 0.4 <= picture.axes[0].get_xlim()[1] <= 2000


def test_an_operation_that_never_ended_is_hatched_and_named():
    timelines = overlapped()
    timelines[1].operations.append(operation("recv", 0.3, 0.4, None, peer=0, sequence=3))
    picture = viz.timeline(timelines)
    assert any(text.startswith("recv #3 from rank 0") for text in said(picture))
    assert any(collection.get_hatch() for collection in picture.axes[0].collections)


def test_a_failed_operation_is_marked():
    timelines = overlapped()
    timelines[1].operations.append(operation("send", 0.3, 0.4, 0.5, peer=0, failed=True))
    picture = viz.timeline(timelines)
    assert [line.get_xdata()[0] for line in picture.axes[0].lines] == [500.0]
    assert "failed" in said(picture)


def messages(number):
    sends = [
        operation("send", i / 100, None, i / 100 + 0.004, peer=1, sequence=i + 1)
        for i in range(number)
    ]
    receives = [
        operation("recv", i / 100, i / 100, i / 100 + 0.005, peer=0, sequence=i + 1)
        for i in range(number)
    ]
    return [Timeline(sends, [], 0.0, number / 100), Timeline(receives, [], 0.0, number / 100)]


def test_an_arrow_goes_from_the_send_to_the_end_of_its_receive():
    first, second = arrows(viz.timeline(messages(2)))
    assert [first.xyann[0], second.xyann[0]] == pytest.approx([0.0, 10.0])
    assert [first.xy[0], second.xy[0]] == pytest.approx([5.0, 15.0])
    assert first.xyann[1] < 1 < first.xy[1]


def test_many_messages_are_drawn_without_arrows():
    assert len(arrows(viz.timeline(messages(60)))) == 60
    assert len(arrows(viz.timeline(messages(61)))) == 0


def test_receives_are_matched_by_group():
    timelines = messages(1)
    other = operation("recv", 0.0, 0.0, 0.005, peer=0)
    timelines[1].operations[:] = [other.__class__(**fields(other) | {"group_name": "tp"})]
    assert arrows(viz.timeline(timelines)) == []


def fields(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def many(num_operations):
    """Every rank waits for half of each millisecond."""
    posts = [i / 1000 for i in range(num_operations)]
    operations = [operation("all_reduce", at, at, at + 0.0005) for at in posts]
    return [Timeline(list(operations), [], 0.0, num_operations / 1000) for _ in range(2)]


def test_thousands_of_operations_become_shares_of_time():
    picture = viz.timeline(many(5000))
    assert len(picture.axes[0].get_children()) < 60
    assert "50% waiting" in said(picture)
    # Half of the bar's height from its top is waiting, the other half is not.
    assert pixel(picture, 2.5, 0, end=5.0) == style.kind_family("all_reduce").colour


def test_a_window_begins_at_0_and_says_where_that_is():
    picture = viz.timeline(overlapped(), between=(0.25, 1.0))
    assert picture.axes[0].get_xlim() == (0.0, 750.0)
    assert "250 ms" in picture.axes[0].get_xlabel()
    # Rank 0 waits from 0.6 s to 0.8 s.
    orange = style.kind_family("all_reduce").colour
    waits = [pixel(picture, at, 0, end=0.75) == orange for at in (0.33, 0.37, 0.53, 0.57)]
    assert waits == [False, True, True, False]


def stepping(*lengths_s):
    """Two ranks; each step has a backward pass, and an all_reduce of 0.1 s at its end."""
    start_s, operations, regions = 0.5, [], []
    for length_s in lengths_s:
        end_s = start_s + length_s
        regions += [Region("step", start_s, end_s), Region("backward", start_s, end_s - 0.1)]
        operations.append(operation("all_reduce", end_s - 0.1, end_s - 0.1, end_s))
        start_s = end_s + 0.2
    return [Timeline(list(operations), list(regions), 0.0, start_s) for _ in range(2)]


def test_several_runs_have_one_scale_that_begins_at_0():
    picture = viz.compared_timelines(
        {"long": stepping(0.5), "short": stepping(0.5, 0.4)}, region="step"
    )
    long, short = picture.axes
    assert long.get_xlim() == pytest.approx((0.0, 500.0))
    assert short.get_xlim() == pytest.approx((0.0, 500.0))
    assert long.get_position().width == short.get_position().width
    assert [axes.get_xlabel() for axes in picture.axes] == ["", "time (ms)"]
    # The second step of "short" is the shorter one: it waits a quarter of the time.
    assert [text for text in said(picture) if "waiting" in text and "%" in text] == [
        *["20% waiting"] * 2,
        *["25% waiting"] * 2,
    ]
    assert "step" not in said(picture)  # it only marks the window
    assert repr(picture) == "<timelines of long; short>"


def test_one_run_among_several_is_drawn_where_it_is():
    picture = viz.compared_timelines({"one": stepping(0.4), "other": stepping(0.8)}, region="step")
    image = np.asarray(Image.open(io.BytesIO(picture.png())).convert("RGB"))
    orange = [int(style.kind_family("all_reduce").colour[i : i + 2], 16) for i in (1, 3, 5)]
    for axes, waits in zip(picture.axes, [(0.35, 0.38), (0.75, 0.78)], strict=True):
        left, bottom, width, height = axes.get_position().bounds
        row = image[int((1 - bottom - 0.9 * height) * len(image))]
        for at_s in (0.1, *waits, 0.65):
            found = row[int((left + width * at_s / 0.8) * len(row))].tolist()
            assert (found == orange) == (at_s in waits)


def test_runs_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        viz.compared_timelines({})
    with pytest.raises(ValueError, match="'b'; its regions are backward"):
        viz.compared_timelines({"a": stepping(0.4), "b": overlapped()}, region="step")


def test_an_operation_is_in_flight_until_the_backend_has_completed_it():
    op = operation("all_reduce", 0.2, 0.6, 0.8, completed_s=0.5)
    timeline = Timeline([op, operation("all_reduce", 0.3, 0.6, 0.8)], [], 0.0, 1.0)
    assert [(span.start_s, span.end_s) for span in in_flight(timeline, 1.0)] == [
        (0.2, 0.5),
        (0.3, 0.8),
    ]


def test_chosen_ranks_only():
    labels = viz.timeline(many(3) * 4, ranks=[5, 2]).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["rank 5", "rank 2"]


def test_a_long_list_of_ranks_is_cut_and_says_so():
    picture = viz.timeline(many(3) * 20)
    assert len(picture.axes[0].get_yticklabels()) == 16
    assert any(text.startswith("16 of 40 ranks") for text in said(picture))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranks": [2]}, "0 to 1"),
        ({"between": (1, 1)}, "empty"),
        ({"ranks": [-1]}, "-1"),
    ],
)
def test_what_cannot_be_shown_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        viz.timeline(overlapped(), **options)


@pytest.mark.parametrize("timelines", [[], [Timeline()], [Timeline([], [], 0.0, 0.1)] * 3])
def test_a_run_without_operations_still_draws(timelines):
    picture = viz.timeline(timelines)
    assert not arrows(picture)
    assert picture.png().startswith(b"\x89PNG")


@pytest.mark.parametrize("timelines", [messages(40), many(1000) * 8], ids=["arrows", "16 ranks"])
def test_a_picture_is_small_and_sharp(timelines):
    picture = viz.timeline(timelines)
    data, metadata = picture._repr_mimebundle_()
    assert len(data["image/png"]) < 100_000
    image = Image.open(io.BytesIO(data["image/png"])).convert("RGB")
    assert metadata["image/png"] == {"width": image.width // 2, "height": image.height // 2}
    assert image.getpixel((0, 0)) == (255, 255, 255)  # 64 colours leave flat ones as they are
    assert metadata["image/png"]["width"] <= 900


def test_the_plain_text_of_a_picture_is_the_same_in_every_run():
    assert repr(viz.timeline(overlapped())) == "<timeline of 2 ranks>"


def test_pictures_leave_nothing_for_pyplot_to_show_again():
    import matplotlib.pyplot as plt

    viz.timeline(overlapped())
    assert plt.get_fignums() == []


def test_outside_of_a_notebook_a_picture_goes_into_a_file(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    viz.timeline(overlapped()).show()
    (file,) = tmp_path.glob("*.png")
    assert str(file) in capsys.readouterr().out
    assert file.read_bytes().startswith(b"\x89PNG")


def ring_with_states(world):
    """A ring all-reduce of tagged chunks, one element each; returns its state at every step."""
    n, rank = world.size, world.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    x = viz.tagged(rank, n)
    states = [x.clone()]
    for step in range(2 * (n - 1)):
        is_reducing = step < n - 1
        outgoing = (rank - 1 - step if is_reducing else rank - step + n - 1) % n
        pending = world.irecv(torch.empty(1, dtype=x.dtype), left)
        sending = world.isend(x[outgoing : outgoing + 1].clone(), right)
        arriving = (outgoing - 1) % n
        x[arriving] = pending.wait()[0] + (x[arriving] if is_reducing else 0)
        sending.wait()
        states.append(x.clone())
    return states


def test_a_real_ring_is_drawn_as_it_ran():
    result = run(ring_with_states, 3)
    assert result.values[0][-1].tolist() == [111, 222, 333]
    picture = viz.ring_steps(result.values, title="ring")
    (axes,) = picture.axes
    # One heavy outline per rank and step: exactly one chunk changes.
    heavy = [patch for patch in axes.patches if patch.get_linewidth() > 1]
    assert len(heavy) == 3 * 4
    timeline = viz.timeline(result)
    assert len(arrows(timeline)) == 12
    assert "send / recv" in said(timeline)


@pytest.mark.parametrize(
    ("states", "says"),
    [([], "one"), ([[[1.0]], []], "same"), ([[[0.5]]], "0.5")],
)
def test_states_that_form_no_table_are_refused(states, says):
    with pytest.raises(ValueError, match=says):
        viz.ring_steps(states)


def test_tags_say_where_a_sum_comes_from():
    total = viz.tagged(0, 3) + viz.tagged(2, 3)
    assert total.tolist() == [101, 202, 303]
    assert contributors(total[1].item()) == {0: 1, 2: 1}
    assert contributors(0.0) == {}
    assert contributors(2.5) is None
    assert contributors(-1.0) is None


@pytest.mark.parametrize(
    "arguments", [(15, 3), (-1, 3), (0, 10), (0, 0), (0, 3, torch.float32), (0, 3, torch.float16)]
)
def test_tags_that_would_not_be_exact_are_refused(arguments):
    with pytest.raises(ValueError):
        viz.tagged(*arguments)


def stripes(picture):
    return [
        tuple(colour)
        for axes in picture.axes
        for collection in axes.collections
        for colour in collection.get_facecolor()[:, :3].round(3)
    ]


def test_a_cell_has_the_colours_of_the_ranks_that_are_in_it():
    before = [viz.tagged(rank, 2) for rank in range(3)]
    after = [sum(before), before[1], None]
    colours = stripes(viz.moves({"example": list(zip(before, after))}))
    assert len(colours) == 3 * 2 + 2 * 3 + 2 * 1
    assert len(set(colours)) == 3


def test_values_that_are_no_tags_are_grey():
    mean = torch.tensor([277.75, 1111.0])
    colours = stripes(viz.moves({"mean": [(viz.tagged(0, 2), mean)]}))
    assert len(set(colours[2:])) == 1  # 1111 is a mean too, whatever its digits say
    assert len(set(colours[2][:3])) == 1


def test_a_rank_with_nothing_says_so():
    picture = viz.moves(
        {"gather": [(viz.tagged(0, 1), viz.tagged(0, 1)), (viz.tagged(1, 1), None)]}
    )
    assert said(picture).count("nothing") == 1


@pytest.mark.parametrize("primitives", [{}, {"none": []}])
def test_moves_that_cannot_be_drawn_are_refused(primitives):
    with pytest.raises(ValueError):
        viz.moves(primitives)


# Machado, Oliveira and Fernandes 2009: linear RGB as seen with each full colour blindness.
VISIONS = {
    "normal": np.eye(3),
    "no red cones": [
        [0.1523, 1.0526, -0.2049],
        [0.1145, 0.7863, 0.0992],
        [-0.0039, -0.0481, 1.052],
    ],
    "no green cones": [
        [0.3673, 0.8606, -0.228],
        [0.2801, 0.6725, 0.0474],
        [-0.0118, 0.0429, 0.9689],
    ],
    "no blue cones": [
        [1.2555, -0.0767, -0.1788],
        [-0.0784, 0.9308, 0.1476],
        [0.0047, 0.6914, 0.3039],
    ],
}


def lab(colour, vision):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(VISIONS[vision]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ linear / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize(
    "colours",
    [
        [family.colour for family in style.KIND_FAMILIES],
        [style.rank_colour(rank) for rank in range(8)],
    ],
    ids=["operations", "ranks"],
)
def test_colours_that_mean_something_differ_for_every_eye(colours, vision):
    # About 2 can just be seen, side by side; across a picture it takes several times that.
    for one, other in itertools.combinations(colours, 2):
        assert np.linalg.norm(lab(one, vision) - lab(other, vision)) > 14, (one, other)
