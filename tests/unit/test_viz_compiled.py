"""The picture of a graph's order: as long as the order says, whatever the number of orders."""

import pytest

from labkit import viz
from labkit.compiled.graph import Event

WAITS = [Event("start", "all_gather", 0, 1000), Event("wait", "all_gather", 0)]
WORK = [Event("compute", "", 5)]


def bars(order):
    (axes,) = viz.graph_orders({"order": order}).axes
    return sorted((bar.get_x(), bar.get_width()) for bar in axes.patches)


def test_what_is_waited_for_delays_the_computation_and_what_is_not_runs_beside_it():
    # A collective takes 3, and 1 for each 1,000 bytes.
    assert bars(WAITS + WORK) == [(0, 4), (4, 5)]
    assert bars([WAITS[0], *WORK, WAITS[1]]) == [(0, 4), (0, 5)]


def test_one_collective_is_on_the_network_at_a_time():
    second = [each._replace(number=1) for each in WAITS]
    assert bars([WAITS[0], second[0], WAITS[1], second[1], *WORK]) == [(0, 4), (4, 4), (8, 5)]


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="nothing to draw"):
        viz.graph_orders({})
