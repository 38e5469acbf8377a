"""The plan of a save: each element is written once, by a rank that has it."""

import pytest

from labkit.checkpoint.saving import SPLIT_BYTES, ShardSpec, make_plan
from labkit.shards import Extent

SHAPE = (4112,)


def shard(start, stop, shape=SHAPE):
    return ShardSpec("model.w", "F32", "elements", Extent.whole(shape).within(start, stop))


def written(plan):
    """The elements that each rank writes, in order."""
    extents = [
        [plan.extent(rank, share) for share in shares] for rank, shares in enumerate(plan.shares)
    ]
    return [[i for e in of_rank for i in range(e.start, e.stop)] for of_rank in extents]


def test_replicas_that_are_cut_at_other_places_write_each_element_once():
    """A tied weight on two stages, each cut over dp at a place of its own."""
    plan = make_plan([[shard(0, 4000)], [shard(0, 300)], [shard(4000, 4112)], [shard(300, 4112)]])
    assert sorted(sum(written(plan), [])) == list(range(4112))


def test_large_replicas_are_divided_among_their_ranks_and_small_ones_dealt_out():
    large = (SPLIT_BYTES // 2,)
    plan = make_plan(3 * [[shard(0, large[0], large)]])
    sizes = [len(of_rank) for of_rank in written(plan)]
    assert sum(sizes) == large[0] and max(sizes) - min(sizes) <= 1
    small = [ShardSpec(f"model.{n}", "F32", "elements", Extent.whole((8,))) for n in range(6)]
    plan = make_plan([small, small])
    assert [len(shares) for shares in plan.shares] == [3, 3]


def test_a_tensor_of_which_elements_are_on_no_rank_is_refused():
    with pytest.raises(ValueError, match="4112 elements.* 4000"):
        make_plan([[shard(0, 4000)], [shard(0, 4000)]])


def test_ranks_of_two_models_are_refused():
    with pytest.raises(ValueError, match="rank 0.*rank 1"):
        make_plan([[shard(0, 4112)], [shard(0, 8, (8,))]])


def test_buffers_that_replicas_keep_for_themselves_are_all_of_the_lowest_rank_that_has_them():
    """A stage of a pipeline on ranks 1 and 2, and a BatchNorm that all three have."""
    names = ["running_mean", "running_var", "num_batches_tracked"]
    norm = [ShardSpec(f"model.{n}", "F32", "whole", Extent.whole((8,))) for n in names]
    stage = [each._replace(name=f"{each.name} of a stage") for each in norm]
    plan = make_plan([norm, norm + stage, norm + stage])
    assert [[share.shard for share in shares] for shares in plan.shares] == [
        [0, 1, 2],
        [3, 4, 5],
        [],
    ]
