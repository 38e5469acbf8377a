"""Pictures of memory: every byte stacked, the peak marked, and a device's capacity beside it."""

import dataclasses

import pytest
from matplotlib.colors import to_hex

from labkit import calc, viz
from labkit.memory import KINDS, Usage
from labkit.viz import style


def usage(**histories):
    length = len(next(iter(histories.values())))
    bytes_of = {kind: histories.get(kind, [0] * length) for kind in KINDS}
    return Usage([0.010 * n for n in range(length)], bytes_of)


STEP = usage(
    parameters=[1000] * 5,
    gradients=[0, 0, 0, 500, 1000],
    activations=[0, 2000, 4000, 2000, 0],
)


def said(picture):
    texts = [text for axes in picture.axes for text in axes.texts] + picture.texts
    for legend in picture.legends:
        texts += legend.get_texts()
    return [text.get_text().strip() for text in texts if text.get_text()]


def areas(picture):
    """For each filled area from below: its colour, and the largest height of its upper edge."""
    found = picture.axes[0].collections
    return [(to_hex(a.get_facecolor()[0]), a.get_paths()[0].vertices[:, 1].max()) for a in found]


def test_kinds_are_stacked_and_those_that_never_lived_are_left_out():
    colours, heights = zip(*areas(viz.memory_timeline(STEP)))
    kinds = ("parameters", "gradients", "activations")
    assert colours == tuple(style.memory_colour(kind) for kind in kinds)
    assert heights == (1000, 2000, 5000)


def test_the_peak_has_its_mark_and_the_legend_what_was_alive_then():
    picture = viz.memory_timeline(STEP)
    texts = said(picture)
    assert "peak: 5 KB" in texts
    assert "activations, 4 KB at the peak" in texts
    assert "gradients, 0 B at the peak" in texts
    (dot,) = [line for line in picture.axes[0].lines if line.get_marker() == "o"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (20, 5000)  # ms


def test_the_most_of_a_kind_is_marked_instead_of_the_peak():
    later = usage(activations=[100, 900, 0], other=[0, 0, 1000])
    picture = viz.memory_timeline(later, mark="activations")
    assert "most activations: 900 B" in said(picture)
    (dot,) = [line for line in picture.axes[0].lines if line.get_marker() == "o"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (10, 900)
    with pytest.raises(ValueError, match="mark='gradients'.*there were activations, other"):
        viz.memory_timeline(later, mark="gradients")


def test_what_stays_lies_below_what_comes_and_goes():
    states = usage(gradients=[3, 0], **{"optimizer states": [4, 4]}, parameters=[5, 5])
    colours = [colour for colour, _ in areas(viz.memory_timeline(states))]
    order = ("parameters", "optimizer states", "gradients")
    assert colours == [style.memory_colour(kind) for kind in order]


def test_phases_have_names_where_there_is_room():
    phases = [("forward", 0.020), ("backward", 0.0399), ("optimizer", 0.040)]
    texts = said(viz.memory_timeline(STEP, phases=phases, title="one step"))
    assert {"forward", "backward", "one step"} <= set(texts) and "optimizer" not in texts


def test_thousands_of_changes_make_a_small_picture():
    long = usage(parameters=[10**6] * 5000, activations=[n % 997 * 1000 for n in range(5000)])
    assert len(viz.memory_timeline(long).png()) < 100_000


@pytest.mark.parametrize("empty", [Usage([], {kind: [] for kind in KINDS}), usage(other=[0, 0])])
def test_a_usage_without_bytes_is_refused(empty):
    with pytest.raises(ValueError, match="alive"):
        viz.memory_timeline(empty)


# --- bars ----------------------------------------------------------------------------------------

SETUP = calc.TrainingSetup(model="llama2-7b", pp=2, tp=2, recompute="full")


def bars(picture):
    """(colour, where it begins, how long it is) of every part of every bar."""
    parts = [patch for patch in picture.axes[0].patches if patch.get_fill()]
    return [(to_hex(p.get_facecolor()), p.get_x(), p.get_width(), p.get_y()) for p in parts]


def test_every_part_has_its_length_and_follows_the_one_before():
    (only,) = calc.footprints(dataclasses.replace(SETUP, pp=1))
    drawn = bars(viz.memory_bar([only], 80e9))
    left = 0.0
    for (colour, x, width, _), (name, part) in zip(drawn, only.parts.items(), strict=True):
        assert (colour, x, width) == (style.memory_colour(name), pytest.approx(left), float(part))
        left += float(part)
    assert left == pytest.approx(float(only))


def test_there_is_a_bar_for_each_stage_and_it_says_what_is_left():
    stages = calc.footprints(SETUP)
    texts = said(viz.memory_bar(stages, 80e9))
    assert {"stage 0", "stage 1"} <= set(texts)
    for stage in stages:
        assert f"{calc.bytes_text(80e9 - float(stage))} left" in texts


def test_what_is_beyond_the_capacity_is_hatched_and_said():
    stages = calc.footprints(SETUP)
    picture = viz.memory_bar(stages, calc.amount("24 GB"), title="too small")
    hatched = [patch for patch in picture.axes[0].patches if patch.get_hatch()]
    assert [patch.get_x() for patch in hatched] == [24e9, 24e9]
    assert [patch.get_width() for patch in hatched] == [float(s) - 24e9 for s in stages]
    assert f"{calc.bytes_text(float(stages[0]) - 24e9)} over" in said(picture)
    assert repr(picture) == "<too small, of 24 GB>"


def test_sixteen_bars_may_have_names():
    (one,) = calc.footprints(calc.TrainingSetup(model="gpt2"))
    names = {f"gpu {number}": one for number in range(16)}
    assert set(names) <= set(said(viz.memory_bar(names, 24e9)))


@pytest.mark.parametrize(
    ("results", "match"),
    [
        ([], "0 GPUs"),
        ([calc.footprint(SETUP)] * 17, "17 GPUs"),
        ([calc.amount("5 GB")], "stage 0: 5 GB"),
        ([calc.num_parameters("gpt2")], "bytes"),
    ],
)
def test_what_is_no_footprint_is_refused(results, match):
    with pytest.raises(ValueError, match=match):
        viz.memory_bar(results, 80e9)


def test_kinds_that_stand_together_have_colours_of_their_own():
    together = [*KINDS[:2], "master", "moments", "activations", "logits and loss", "whole units"]
    together += ["casts", "recomputed layer", "head inputs", "gradients of the loss", "other"]
    together += ["gathered gradients", "stage buffers"]
    assert len({style.memory_colour(kind) for kind in together}) == len(together)
    assert style.memory_colour("moments") == style.memory_colour("optimizer states")
