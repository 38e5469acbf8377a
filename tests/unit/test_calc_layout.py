"""Layouts: which ranks are in a group, what does not divide, and clusters of nodes."""

import itertools
import math
from dataclasses import replace

import pytest

from labkit import calc
from labkit.calc import Layout
from labkit.calc import layout as calc_layout
from labkit.calc.hardware import Cluster, Tier

EIGHT = Layout(world_size=48, tp=2, pp=3, cp=2)


def test_data_parallelism_has_the_ranks_that_are_left():
    assert EIGHT.dp == 4
    assert math.prod(EIGHT.sizes.values()) == 48


def test_every_rank_has_coordinates_of_its_own():
    found = {tuple(EIGHT.coordinates(rank).items()) for rank in range(48)}
    assert len(found) == 48
    assert EIGHT.coordinates(47) == {"pp": 2, "dp": 3, "cp": 1, "tp": 1}


@pytest.mark.parametrize("order", list(itertools.permutations(calc_layout.AXES)))
def test_a_group_has_the_ranks_that_differ_along_its_axis_only(order):
    layout = replace(EIGHT, order=order)
    for axis, rank in itertools.product(order, range(48)):
        mine = layout.coordinates(rank)
        same = [
            other
            for other in range(48)
            if all(layout.coordinates(other)[each] == mine[each] for each in order if each != axis)
        ]
        assert list(layout.group(axis, rank)) == same


def test_tensor_parallel_ranks_are_neighbours_and_stages_are_far_apart():
    layout = Layout(world_size=64, tp=8, pp=2)
    assert [layout.in_one_node(axis, 8) for axis in ("tp", "dp", "pp")] == [8, 1, 1]
    assert replace(layout, order=("tp", "dp", "cp", "pp")).in_one_node("tp", 8) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tp": 3}, "3 ranks.*world_size=16; 15"),
        ({"tp": 32}, "32 ranks would do"),
        ({"ep": 3}, "ep=3 .*dp=16"),
        ({"virtual": 2}, "need a pipeline"),
        ({"zero": 4}, "give 0, 1, 2 or 3"),
        ({"recompute": "Full"}, "Full"),
        ({"order": ("tp", "dp", "pp")}, "each once"),
        ({"pp": 2.5}, "whole number"),
    ],
)
def test_what_cannot_be_is_named_with_what_can(wrong, said):
    with pytest.raises(ValueError, match=said):
        Layout(world_size=16, **wrong)


def test_a_batch_is_shared_evenly_or_not_at_all():
    layout = Layout(world_size=16, pp=4, microbatch=2)
    assert layout.num_microbatches(64) == 8
    for wrong in (4, 60, 65):
        with pytest.raises(ValueError, match="give a multiple of 8"):
            layout.num_microbatches(wrong)


def test_clusters_are_of_whole_nodes_and_interrupted_the_more_the_larger_they_are():
    assert calc.cluster("h100", 512).num_nodes == 64
    assert calc.cluster("h100", 4).num_nodes == 1
    # arXiv:2407.21783: 419 interruptions in 54 days.
    assert calc.cluster("h100", 16384).mtbf_s / 3600 == pytest.approx(3.09, rel=0.02)
    with pytest.raises(ValueError, match="give 512 or 520"):
        calc.cluster("h100", 515)
    with pytest.raises(ValueError, match="a100-40g, h100"):
        calc.cluster("h1000")
    with pytest.raises(ValueError, match=r"did you mean llama3-8b"):
        calc.num_parameters("Llama-3-8B")


def test_a_cluster_has_a_gpu_and_links_of_two_speeds():
    tier = Tier(50e9, 5e-6)
    with pytest.raises(ValueError, match="is no GPU and none of"):
        Cluster(gpu="p100", num_gpus=8, fast=tier, slow=tier)
    with pytest.raises(TypeError, match="give a Tier"):
        Cluster(gpu="h100", num_gpus=8, fast=450e9, slow=tier)
    h100 = calc.CLUSTERS["h100"]
    assert h100.tier(crosses_nodes=True) is h100.slow
    assert h100.device.flops_per_s == pytest.approx(989e12, rel=1e-3)
