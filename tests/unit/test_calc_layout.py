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
        ({"ep": 16, "tp": 2, "etp": 2}, r"ep=16 \* etp=2 .*try ep=8"),
        ({"etp": 3}, "try etp=1"),
        ({"pp": 2, "stages": (1, 2, 3)}, "are 3, and pp=2"),
        ({"pp": 2, "stages": 4}, "stages"),
        ({"shards": 3}, "shards=3 .*give 1, 2, 4, 8 or 16"),
        ({"reshard_after_forward": "yes"}, "give True or False"),
        ({"recompute_every": 0}, "recompute_every=0"),
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


def test_a_layout_is_read_from_its_words_and_written_in_others():
    text = (
        "dp=4 tp=2 pp=4 ep=8 etp=1 stages=1+2+2+3 zero=3 shards=2 reshard_after_forward=false "
        "recompute=full recompute_every=2"
    )
    layout = Layout.parse(text)
    assert (layout.dp, layout.stages, layout.shards, layout.etp) == (4, (1, 2, 2, 3), 2, 1)
    assert layout.reshard_after_forward is False
    assert str(layout) == (
        "dp 4 x tp 2 x pp 4, ep 8, etp 1, stages 1+2+2+3, zero 3, shards 2, not resharded, "
        "recompute full every 2 layers, microbatch 1"
    )
    for wrong in ("stages=1+x", "stages=1+-2", "reshard_after_forward=maybe"):
        with pytest.raises((ValueError, TypeError), match=wrong.partition("=")[0]):
            Layout.parse(f"pp=2 {wrong}")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("zero3", "zero"), ("micro_batch=2", "microbatch"), ("recomputation=full", "recompute")),
        *(("fsdp=8", "zero=3"), ("vpp=2", "virtual"), ("MBS=4", "microbatch")),
    ],
)
def test_a_word_that_is_nearly_one_of_a_layout_is_answered_with_it(word, meant):
    with pytest.raises(ValueError, match=f"did you mean {meant}"):
        Layout.parse(f"tp=2 {word}")


@pytest.mark.parametrize(
    ("axes", "groups", "copies"),
    [
        # one expert a rank, over cp first
        ({"cp": 4, "ep": 8}, [(1, 1), (4, 1), (2, 4)], [(1, 1), (1, 4), (2, 8)]),
        ({"tp": 2, "cp": 2, "ep": 4}, [(1, 2), (2, 2), (2, 4)], [(1, 2), (1, 4), (2, 8)]),
        # ranks of tp have other experts
        ({"tp": 4, "ep": 8, "etp": 1}, [(4, 1), (1, 4), (2, 4)], [(1, 4), (1, 4), (2, 8)]),
    ],
)
def test_experts_are_shared_by_the_nearest_ranks(axes, groups, copies):
    layout = Layout(world_size=16, **axes)
    assert [list(each) for each in layout.expert_sides] == [groups, copies]
    shared = math.prod(size for size, _ in groups)
    assert shared == layout.ep
    assert shared * layout.expert_tp * math.prod(size for size, _ in copies) == 16
    assert layout.joined_replicas == layout.dp // copies[-1][0]
