"""The ranks of a mesh by node: every rank once, with its coordinates, and in the right colour."""

import pytest
from matplotlib.colors import to_hex

from labkit import run, viz
from labkit.mesh import Mesh, coordinates_at, ranks_along
from labkit.viz import style
from labkit.viz.mesh import AXIS_COLOURS, MAX_RANKS
from labkit.viz.mesh_places import groups_of, places

SIZES = {"dp": 2, "pp": 2, "tp": 2}
TINTS = {axis: style.tint(colour, 0.45) for axis, colour in AXIS_COLOURS.items()}


def boxes(picture, num_ranks):
    """By rank: where its rectangle is, its colour, and the words in it."""
    (axes,) = picture.axes
    frames = [patch for patch in axes.patches if to_hex(patch.get_edgecolor()) == "#8a8a8a"]
    assert len(frames) == num_ranks
    found = {}
    for frame in frames:
        (x, y), width, height = frame.get_xy(), frame.get_width(), frame.get_height()
        inside = [
            text.get_text()
            for text in axes.texts
            if x < text.get_position()[0] < x + width and y < text.get_position()[1] < y + height
        ]
        rank, *words = inside
        found[int(rank)] = ((x, y, width, height), to_hex(frame.get_facecolor()), " ".join(words))
    return found


@pytest.mark.parametrize(
    ("sizes", "rank", "gpus_per_node"),
    [
        (SIZES, 5, 4),
        ({"tp": 2, "dp": 3}, 0, 8),
        ({"dp": 2, "pp": 2, "cp": 2, "ep": 1, "tp": 2}, 13, 2),
        ({"pp": 2, "cp": 2, "dp": 2, "tp": 8}, 63, 2),
        ({"dp": 5}, 4, 1),
    ],
)
def test_every_rank_is_there_once_and_coloured_by_the_axis_it_shares(sizes, rank, gpus_per_node):
    picture = viz.mesh_map(sizes, rank, gpus_per_node=gpus_per_node)
    num_ranks = len(places(sizes, gpus_per_node))
    found = boxes(picture, num_ranks)
    assert sorted(found) == list(range(num_ranks))
    mine = coordinates_at(rank, sizes)
    for each, (_, colour, words) in found.items():
        theirs = coordinates_at(each, sizes)
        assert words == " ".join(f"{axis}{at}" for axis, at in theirs.items())
        differ = [axis for axis in sizes if mine[axis] != theirs[axis]]
        expected = {0: style.INK, 1: TINTS[differ[0]] if differ else None}.get(
            len(differ), "#ffffff"
        )
        assert colour == expected


def groups_on_a_rank(world):
    mesh = Mesh(world, **SIZES)
    return mesh.coordinates, {axis: getattr(mesh, axis).ranks for axis in SIZES}


def test_places_and_groups_are_those_of_a_mesh_of_real_ranks():
    for rank, (coordinates, groups) in enumerate(run(groups_on_a_rank, 8).values):
        assert groups_of(rank, SIZES) == groups
        assert places(SIZES, 4)[rank] == (rank, coordinates, rank // 4)
    assert ranks_along("pp", 5, SIZES) == (5, 7)


def test_the_legend_says_whom_and_over_how_many_nodes():
    _, *axes = repr(viz.mesh_map({"dp": 16, "tp": 2, "pp": 1}, 3, gpus_per_node=8)).split("; ")
    assert axes == [
        "dp: ranks 1, 3, 5, 7, ..., 31 (4 nodes)",
        "tp: ranks 2, 3 (one node)",
        "pp: alone>",
    ]


@pytest.mark.parametrize(
    ("sizes", "choices", "words"),
    [
        ({"dp": MAX_RANKS + 1}, {}, "65 ranks"),
        ({"pp": 2, "cp": 2, "ep": 1, "dp": 2, "tp": 8}, {}, "64 ranks of 5 axes.* 51 ranks"),
        ({"dp": 0}, {}, "dp=0"),
        ({"data": 2}, {}, "'data'"),
        (SIZES, {"rank": 8}, "rank=8"),
        (SIZES, {"gpus_per_node": 0}, "gpus_per_node=0"),
    ],
)
def test_what_is_no_mesh_is_refused(sizes, choices, words):
    with pytest.raises((TypeError, ValueError), match=words):
        viz.mesh_map(sizes, **choices)
