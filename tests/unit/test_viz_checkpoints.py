"""The pictures of checkpoints: owners of elements, loads after a power cut, how jobs continue."""

import pytest
from matplotlib.colors import to_hex

from labkit import viz
from labkit.checkpoint.disk import RecordedDisk
from labkit.checkpoint.power_cut import cuts, operations
from labkit.shards import Extent
from labkit.viz import style

WHOLE = Extent.whole((4, 6))
IN_TWO = [WHOLE.within(0, 14), WHOLE.within(14, 24)]
IN_COLUMNS = [Extent.of_dim((4, 6), 1, range(2)), Extent.of_dim((4, 6), 1, range(2, 6))]


def colours(axes):
    """{colour: number of elements}"""
    pixels = axes.images[0].get_array().reshape(-1, 3)
    found = [to_hex(pixel) for pixel in pixels]
    return {colour: found.count(colour) for colour in found}


def test_each_element_has_the_colour_of_its_rank():
    saved, loaded = viz.extents({"saved": IN_TWO, "columns": IN_COLUMNS}).axes
    first, second = style.rank_colour(0), style.rank_colour(1)
    assert colours(saved) == {first: 14, second: 10}
    assert colours(loaded) == {first: 8, second: 16}
    assert [text.get_text() for text in saved.texts] == ["file 0", "file 1"]
    assert [text.get_text() for text in loaded.texts] == ["rank 0", "rank 1"]


def test_lines_are_where_the_files_meet_in_every_panel():
    saved, loaded = viz.extents({"saved": IN_TWO, "columns": IN_COLUMNS}).axes
    for axes in (saved, loaded):
        lines = [path.vertices.tolist() for each in axes.collections for path in each.get_paths()]
        # Under row 2 left of element 14, above it right of that, and a step between them.
        below = [[[x - 0.5, 2.5], [x + 0.5, 2.5]] for x in (0, 1)]
        above = [[[x - 0.5, 1.5], [x + 0.5, 1.5]] for x in (2, 3, 4, 5)]
        assert sorted(lines) == sorted([*below, *above, [[1.5, 1.5], [1.5, 2.5]]])


@pytest.mark.parametrize(
    ("layouts", "complaint"),
    [
        ({}, "0 layouts"),
        ({"saved": IN_TWO[:1]}, "10 elements"),
        ({"saved": [Extent.whole((24,))]}, "matrix"),
        ({"saved": [WHOLE.within(i, i + 1) for i in range(9)]}, "9 ranks"),
    ],
)
def test_what_cannot_be_drawn_is_refused(layouts, complaint):
    with pytest.raises(ValueError, match=complaint):
        viz.extents(layouts)


@pytest.fixture
def performed(tmp_path):
    """A file of rank 1 is written, synced and renamed; its folder is synced."""
    (tmp_path / "root").mkdir()
    disk, path = RecordedDisk(tmp_path / "log"), tmp_path / "root" / "rank-0001"
    disk.write_whole(path, b"new")
    disk.rename(path, path.with_name("final"))
    disk.sync_folder(path.parent)
    return operations([tmp_path / "log"])


def test_the_power_is_cut_behind_each_operation_in_four_ways(tmp_path, performed):
    found = {}
    for count, way, left in cuts(tmp_path / "root", performed):
        files = {path.name: path.read_bytes() for path in left.iterdir()}
        found.setdefault(way, []).append(files)
        assert count == len(found[way])
    new, old = {"final": b"new"}, {"rank-0001": b"new"}
    assert found["all kept"] == [{"rank-0001": b""}, old, old, new, new]
    assert found["names lost"] == [{}, {}, {}, {}, new]
    assert found["bytes lost"] == [{"rank-0001": b""}] * 2 + [old, new, new]
    assert len(found["by chance"]) == 5 and found["by chance"][-1] == new


def test_operations_are_letters_of_their_rank_and_loads_are_steps(performed):
    outcomes = {"all kept": [None, None, None, 40, 40], "lost": [None, None, None, "mixed", 40]}
    picture = viz.power_cuts(performed, outcomes)
    texts = [text.get_text() for text in picture.axes[0].texts]
    rows = ["rank 0", "rank 1", "all kept", "lost"]
    letters = ["c", "w", "s", "R", "d"]
    assert texts[1:] == [*rows, *letters, *"···", "40", "40", *"···", "!", "40"]
    heights = [patch.get_y() for patch in picture.axes[0].patches[:5]]
    assert heights[0] == heights[1] == heights[2]  # rank 1's rows; rename and folder are rank 0's
    assert to_hex(picture.axes[0].patches[-2].get_facecolor()) == style.ALARM


def test_outcomes_belong_to_operations(performed):
    with pytest.raises(ValueError, match="lost: 1 .* 5"):
        viz.power_cuts(performed, {"lost": [None]})
    with pytest.raises(ValueError, match="0 operations"):
        viz.power_cuts([], {})


def test_jobs_are_drawn_over_the_seconds_since_the_step_before_their_failure():
    restarted = [(3.0, 0), (4.0, 1), (5.0, 2), (9.0, 1), (10.0, 2)]
    ways = {"from disk": restarted, "replicas": [(0.0, 0), (2.0, 2)]}
    picture = viz.recovery(ways, 3, title="ways to go on")
    (axes,) = picture.axes
    lines = [line.get_xydata().tolist() for line in axes.lines]
    new, again, failure = lines[:3]
    assert (new, again, failure) == ([[-2, 0], [-1, 0], [0, 0]], [[4, 0], [5, 0]], [[0, 0]])
    assert lines[3:] == [[[-2, 1], [0, 1]], [], [[0, 1]]]
    assert [bar.get_width() for bar in axes.patches] == [5, 0]  # until all is made again
    assert [label.get_text() for label in axes.get_yticklabels()] == list(ways)
