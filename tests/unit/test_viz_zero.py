"""Pictures of ZeRO: shares are widths, spans are those of the journal, and scales are common."""

import pytest
from matplotlib.colors import to_hex

from labkit import viz
from labkit.comm.operation import Region, Timeline
from labkit.viz import style
from tests.an_operation import an_operation

WEIGHTS = style.kind_family("all_gather").colour
GRADIENTS = style.kind_family("reduce_scatter").colour


def sent(label, start_s, end_s):
    return an_operation("send", peer=1, label=label, posted_s=start_s, done_s=end_s)


def one_step():
    """A layer and the root unit; the step begins at second 10."""
    return Timeline(
        [
            sent("weights of layer", 3, 4),  # in the step before
            sent("weights of root unit", 10, 11),
            sent("weights of layer", 11, 12),
            sent("weights of layer", 12, 13),  # a ring's second message
            sent("weights of layer", 16, 17),
            sent("gradients of layer", 20, 22),
            sent("gradients of root unit", 22, 23),
        ],
        [
            Region("step 1", 10, 24),
            Region("forward of layer", 13, 15),
            Region("backward of layer", 17, 20),
        ],
    )


def bars(axes):
    """(row, start, end, colour) of each bar, in the axis' unit."""
    return {
        (int(b.get_y()), b.get_x(), round(b.get_x() + b.get_width(), 6), to_hex(b.get_facecolor()))
        for b in axes.patches
    }


def test_a_ring_is_one_gather_and_weights_are_whole_until_the_last_use():
    (axes,) = viz.unit_timeline(one_step(), {"second step": "step 1"}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["root unit", "layer"]
    whole = style.tint(WEIGHTS, 0.8)
    assert bars(axes) == {
        (0, 0, 1, WEIGHTS),
        (0, 1, 10, whole),  # to the end of the layers' last use
        (0, 12, 13, GRADIENTS),
        (1, 1, 3, WEIGHTS),
        (1, 3, 5, whole),
        (1, 6, 7, WEIGHTS),
        (1, 7, 10, whole),
        (1, 3, 5, style.region_colours(["forward"])["forward"]),
        (1, 7, 10, style.region_colours(["backward"])["backward"]),
        (1, 10, 12, GRADIENTS),
    }


def test_steps_have_one_time_axis_from_0():
    journal = one_step()
    journal.operations.append(sent("weights of layer", 30, 31))
    journal.regions.append(Region("step 2", 30, 32))
    first, second = viz.unit_timeline(journal, {"a": "step 1", "b": "step 2"}).axes
    assert first.get_xlim() == second.get_xlim() and first.get_xlim()[0] == 0


@pytest.mark.parametrize("name", ["step 7", "forward of layer"])
def test_a_region_without_gathers_and_one_that_is_not_there_are_refused(name):
    with pytest.raises(ValueError, match=f"{name!r}"):
        viz.unit_timeline(one_step(), {"a step": name})


HELD = {
    "ddp": [{"parameters": 400, "moments": 800}] * 2,
    "zero1": [{"parameters": 400, "moments": 400}] * 2,
}


def test_a_shard_has_its_share_of_the_width_at_its_ranks_place():
    ddp, zero1 = viz.held_states(HELD, {"parameters": 4, "moments": 8}, 100).axes
    coloured = [b for b in zero1.patches if to_hex(b.get_facecolor()) != "#f1f1f1"]
    places = [(b.get_x(), b.get_width()) for b in coloured]
    assert places == [(0, 1), (0, 0.5), (0, 1), (0.5, 0.5)]
    assert coloured[1].get_height() == pytest.approx(2 * coloured[0].get_height())
    texts = [text.get_text() for text in (*ddp.texts, *zero1.texts)]
    assert texts.count("1.2 KB") == 2 and texts.count("800 B") == 2 and "rank 1" in texts


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        viz.held_states({"ddp": []}, {"parameters": 4}, 100)


def test_live_bytes_of_steps_are_stacked_on_one_scale():
    steps = {
        "ddp": {"parameters": [10, 10], "buffers": [0, 0], "activations": [0, 30]},
        "zero3": {"parameters": [5, 5], "buffers": [0, 10], "activations": [0, 0]},
    }
    ddp, zero3 = viz.memory_steps(steps).axes
    assert ddp.get_ylim() == zero3.get_ylim()
    heights = [a.get_paths()[0].vertices[:, 1].max() for a in zero3.collections]
    assert heights == [5, 15, 15]
    assert [text.get_text() for text in ddp.texts] == ["40 B"]


def test_a_step_in_which_nothing_lived_is_refused():
    with pytest.raises(ValueError, match="zero3: nothing was ever alive"):
        viz.memory_steps({"zero3": {"parameters": [0, 0]}})
