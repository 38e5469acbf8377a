"""A mesh to point at: the ranks that light up are those of the groups."""

import itertools
import re

import pytest

from labkit.mesh import coordinates_at
from labkit.notebook import mesh_explorer
from labkit.notebook.mesh import COLOURS, mesh_html

SIZES = {"dp": 2, "pp": 3, "tp": 2}


def lit(html, pointed_at, name):
    """By colour, the ranks that the rules light up while the pointer is over a rank."""
    found = {}
    style = re.search(r"<style>(.*)</style>", html)[1]
    for selectors, colour in re.findall(r"([^{}]+)\{background: (#\w+);", style):
        for each in selectors.split(","):
            if each.startswith(f".{name}:has(.r{pointed_at}:hover) "):
                found.setdefault(colour, set()).add(int(each.rsplit(".r", 1)[1]))
    return found


def test_the_ranks_of_each_group_light_up_in_the_colour_of_its_axis():
    html = mesh_html(SIZES, 4, rank=0)
    name = re.search(r'<div class="([\w-]+)"', html)[1]
    for rank in range(12):
        mine = coordinates_at(rank, SIZES)
        colours = lit(html, rank, name)
        for axis in SIZES:
            same = {
                other
                for other in range(12)
                if other != rank
                and all(
                    coordinates_at(other, SIZES)[each] == mine[each]
                    for each in SIZES
                    if each != axis
                )
            }
            assert colours[COLOURS[axis]] == same


def test_without_a_pointer_the_chosen_rank_is_lit():
    html = mesh_html(SIZES, 4, rank=7)
    assert ":not(:has(.rank:hover)) .r7{background: var(--jp-content-font-color0, #222);" in html
    assert "rank 7" in html and "tp: ranks 6, 7 (one node)" in html


def test_every_rank_stands_in_its_node_with_its_coordinates():
    html = mesh_html(SIZES, 4, rank=0)
    nodes = html.split("</style>")[1].split("node ")[1:4]
    assert [re.findall(r"<b>(\d+)</b>", node) for node in nodes] == [
        [str(rank) for rank in range(first, first + 4)] for first in (0, 4, 8)
    ]
    assert "<b>7</b><br>dp1 pp0 tp1" in html


def test_two_meshes_on_a_page_do_not_light_each_other_up():
    names = {
        re.search(r'<div class="([\w-]+)"', mesh_html(sizes, node, rank))[1]
        for sizes, node, rank in itertools.product(
            ({"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}), (2, 4), (0, 1)
        )
    }
    assert len(names) == 8


def test_knobs_change_the_mesh_and_a_rank_that_is_gone_is_moved():
    explorer = mesh_explorer(dp=2, pp=2, tp=2, rank=7)
    assert "8 GPUs per node; rank 7" in repr(explorer)
    explorer._axes["dp"].value = 1
    assert explorer.sizes == {"dp": 1, "pp": 2, "tp": 2} and explorer._rank.value == 3
    assert "dp: alone" in explorer._said.value


def test_more_ranks_than_can_be_read_are_said_and_not_drawn():
    explorer = mesh_explorer(dp=8, tp=8)
    explorer._axes["dp"].value = 16
    assert "128 ranks" in explorer._said.value
    explorer._axes["dp"].value = 4
    assert "node 3" in explorer._said.value


def test_the_largest_is_small_enough_for_a_page():
    assert len(mesh_html({"dp": 4, "pp": 4, "tp": 4}, 8, 0)) < 100_000


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"data": 2}, "'data' is no axis"),
        ({"dp": 65}, "65 ranks; give 1 to 64"),
        ({"dp": 2, "rank": 2}, "rank=2"),
        ({"dp": 2, "gpus_per_node": 0}, "gpus_per_node=0"),
    ],
)
def test_what_is_no_mesh_is_refused_by_name(wrong, said):
    with pytest.raises(ValueError, match=said):
        mesh_explorer(**wrong)
