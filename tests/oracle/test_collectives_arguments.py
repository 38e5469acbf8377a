"""What no collective can work with is refused on every rank, before anything is sent."""

import math

import pytest
import torch

from labkit import RankError, collectives, run
from labkit.collectives import autograd

SUMS = [
    collectives.ring_all_reduce,
    collectives.ring_reduce_scatter,
    collectives.tree_all_reduce,
    collectives.double_tree_all_reduce,
    collectives.halving_doubling_all_reduce,
    collectives.tree_reduce,
    lambda x, group: collectives.hierarchical_all_reduce(x, group, group.split(group.rank)),
]
THAT_MOVE = [
    collectives.tree_broadcast,
    collectives.ring_broadcast,
    collectives.pairwise_all_to_all,
    lambda x, group: collectives.ring_all_gather(x, 4, group),
]
AUTOGRAD = [
    autograd.all_reduce,
    autograd.all_gather,
    autograd.reduce_scatter,
    autograd.all_to_all,
    autograd.broadcast,
    autograd.reduce,
]


def refusals(world, calls):
    """What each call says."""
    said = []
    for call in calls:
        try:
            call(world)
            said.append("")
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def refused_by_all(*calls, world_size=2):
    """The words of each refusal: the same on all ranks, and nothing is sent."""
    result = run(refusals, world_size, (calls,))
    assert all(said == result.values[0] for said in result.values)
    for timeline in result.timeline:
        assert [each for each in timeline.operations if each.kind != "split"] == []
    return result.values[0]


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_is_no_dense_tensor_is_refused(world_size):
    wrong = {
        "expected a tensor, got 3.0": lambda: 3.0,
        "expected a tensor, got None": lambda: None,
        "torch.sparse_coo tensors cannot be sent": lambda: torch.eye(4).to_sparse(),
    }
    for words, make in wrong.items():
        calls = []
        for fn in SUMS + THAT_MOVE + AUTOGRAD:
            of_trees = fn in (
                collectives.tree_reduce,
                collectives.tree_broadcast,
                collectives.ring_broadcast,
            )
            options = {"root": 0} if of_trees else {}
            calls.append(lambda world, fn=fn, make=make, o=options: fn(make(), group=world, **o))
        for said in refused_by_all(*calls, world_size=world_size):
            assert words in said


def test_an_out_is_a_tensor_that_can_be_filled():
    x = torch.ones(4)
    text, sparse, shared = refused_by_all(
        lambda world: collectives.ring_all_reduce(x, world, out="x"),
        lambda world: collectives.tree_all_reduce(x, world, out=x.to_sparse()),
        lambda world: collectives.ring_broadcast(x, 0, world, out=torch.ones(1).expand(4)),
    )
    assert "expected a tensor, got 'x'" in text
    assert "torch.sparse_coo tensors" in sparse
    assert "an expanded tensor cannot be filled" in shared


@pytest.mark.parametrize("splits", [[True, True], [1.0, 1.0], "11", [2, -1], 2])
def test_splits_are_numbers_of_rows(splits):
    for said in refused_by_all(
        lambda world: collectives.pairwise_all_to_all(torch.ones(2), world, send_splits=splits),
        lambda world: world.all_to_all(torch.ones(2), send_splits=splits, recv_splits=splits),
        lambda world: autograd.all_to_all(torch.ones(2), world, send_splits=splits),
    ):
        assert f"send_splits={splits!r} needs one number of rows, 0 or more, for each" in said


@pytest.mark.parametrize("root", [True, 2, -1, 0.0, "0", None])
def test_a_root_is_a_rank_of_the_group(root):
    for said in refused_by_all(
        lambda world: collectives.tree_reduce(torch.ones(2), root, world),
        lambda world: collectives.tree_broadcast(torch.ones(2), root, world),
        lambda world: collectives.ring_broadcast(torch.ones(2), root, world),
        lambda world: autograd.broadcast(torch.ones(2), world, root=root),
        lambda world: autograd.reduce(torch.ones(2), world, root=root),
    ):
        assert f"root={root!r} is not a rank of this group of 2; give a number from 0 to 1" in said


@pytest.mark.parametrize("size", [0, -1, 2.5, math.nan, "2 MiB", True, None])
def test_a_block_has_a_whole_number_of_bytes(size):
    options = {"block_bytes": size}
    for said in refused_by_all(
        lambda world: collectives.tree_all_reduce(torch.ones(2), world, **options),
        lambda world: collectives.double_tree_all_reduce(torch.ones(2), world, **options),
        lambda world: collectives.halving_doubling_all_reduce(torch.ones(2), world, **options),
        lambda world: collectives.ring_broadcast(torch.ones(2), 0, world, **options),
    ):
        assert f"block_bytes={size!r}: " in said and "a whole number of bytes from 1" in said


@pytest.mark.parametrize("numel", [-1, 2.5, math.nan, "4", True, None])
def test_a_number_of_elements_is_whole(numel):
    (said,) = refused_by_all(lambda world: collectives.ring_all_gather(torch.ones(2), numel, world))
    assert f"numel={numel!r}: " in said and "elements of all chunks together" in said


def test_two_tiers_are_two_groups():
    x = torch.ones(2)
    both, one, other, function = refused_by_all(
        lambda world: collectives.hierarchical_all_reduce(x, None, None),
        lambda world: collectives.hierarchical_all_reduce(x, world, None),
        lambda world: collectives.hierarchical_all_reduce(x, "fast", "slow"),
        lambda world: collectives.hierarchical_all_reduce(
            x, *collectives.two_tiers(world, 1), all_reduce="ring"
        ),
    )
    assert "fast=None: give both groups, fast, slow = two_tiers(world, ranks_per_host)" in both
    assert "slow=None: give both groups" in one
    assert "group='fast' is no Group" in other
    assert "all_reduce='ring': give a function, such as labkit.collectives.ring_all_red" in function


@pytest.mark.parametrize("number", [0, 3, -2, 1.5, math.nan, "2", True, None])
def test_ranks_of_a_host_divide_the_ranks(number):
    (said,) = refused_by_all(lambda world: collectives.two_tiers(world, number), world_size=4)
    assert f"ranks_per_host={number!r}" in said
    assert "it can be 1, 2, 4" in said or "a host has as many ranks as every other one" in said


def test_a_rank_outside_of_a_tier_is_told_so():
    def outsider(world):
        fast = world.split(0 if world.rank == 0 else None)
        collectives.hierarchical_all_reduce(torch.ones(2), fast, world.split(world.rank))

    with pytest.raises(RankError, match="rank 1 uses .* of a group that it does not belong to"):
        run(outsider, 2)
