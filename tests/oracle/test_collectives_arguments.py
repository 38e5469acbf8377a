"""Arguments that no collective can work with are refused on every rank, before anything is sent."""

import pytest
import torch

from labkit import RankError, collectives, run
from labkit.collectives import autograd
from tests.refused import assert_refused

X, ROWS = torch.ones(4), torch.ones(2)
BY_GROUP = [
    collectives.ring_all_reduce,
    collectives.ring_reduce_scatter,
    collectives.tree_all_reduce,
    collectives.double_tree_all_reduce,
    collectives.halving_doubling_all_reduce,
    collectives.pairwise_all_to_all,
    lambda x, group: collectives.hierarchical_all_reduce(x, *collectives.two_tiers(group, 1)),
    lambda x, group: collectives.ring_all_gather(x, 4, group),
    lambda x, group: collectives.bruck_all_gather(x, 4, group),
    autograd.all_reduce,
    autograd.all_gather,
    autograd.reduce_scatter,
    autograd.all_to_all,
]
BY_ROOT = [
    collectives.tree_reduce,
    collectives.tree_broadcast,
    collectives.ring_broadcast,
    lambda x, root, group: autograd.broadcast(x, group, root=root),
    lambda x, root, group: autograd.reduce(x, group, root=root),
]
IN_BLOCKS = [
    collectives.tree_all_reduce,
    collectives.double_tree_all_reduce,
    collectives.halving_doubling_all_reduce,
    lambda x, group, **options: collectives.ring_broadcast(x, 0, group, **options),
]


def test_what_cannot_be_sent_is_refused():
    assert_refused(
        *((lambda w, fn=fn: fn(3.0, w), TypeError, "got 3.0") for fn in BY_GROUP),
        *((lambda w, fn=fn: fn(None, 0, w), TypeError, "got None") for fn in BY_ROOT),
        *((lambda w, fn=fn: fn(ROWS, 2, w), ValueError, "root=2 .*0 to 1") for fn in BY_ROOT),
        (lambda w: autograd.all_reduce(X.to_sparse(), w), TypeError, "sparse_coo"),
        (lambda w: collectives.ring_all_reduce(X, w, out="x"), TypeError, "got 'x'"),
        (lambda w: collectives.tree_all_reduce(X, w, out=X.to_sparse()), TypeError, "sparse"),
        (
            lambda w: collectives.ring_broadcast(X, 0, w, out=torch.ones(1).expand(4)),
            ValueError,
            "an expanded tensor",
        ),
    )


@pytest.mark.parametrize("splits", [[True, True], [1.0, 1.0], "11", [2, -1], 2])
def test_splits_are_numbers_of_rows(splits):
    assert_refused(
        *(
            (lambda w, fn=fn: fn(ROWS, w, send_splits=splits), ValueError, "send_splits=")
            for fn in (collectives.pairwise_all_to_all, autograd.all_to_all)
        )
    )


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), ("2 MiB", TypeError)])
def test_a_block_has_a_whole_number_of_bytes(size, error):
    assert_refused(
        *((lambda w, fn=fn: fn(ROWS, w, block_bytes=size), error, "block_") for fn in IN_BLOCKS)
    )


def test_two_tiers_are_two_groups_of_hosts_of_equal_size():
    reduced = collectives.hierarchical_all_reduce
    assert_refused(
        (lambda w: reduced(X, w, w), ValueError, "make both with two_tiers"),
        (lambda w: reduced(X, None, None), ValueError, "make both with two_tiers"),
        (lambda w: reduced(X, "fast", "slow"), TypeError, "group='fast' is no Group"),
        *(
            (lambda w, n=n: collectives.two_tiers(w, n), ValueError, f"={n!r} .* 1, 2, 4")
            for n in (0, 3, "2")
        ),
        world_size=4,
    )


def test_a_rank_outside_of_a_tier_gets_an_error():
    def outsider(world):
        fast = world.split(0 if world.rank == 0 else None)
        collectives.hierarchical_all_reduce(torch.ones(2), fast, world.split(world.rank))

    with pytest.raises(RankError, match="rank 1 uses .* of a group that it does not belong to"):
        run(outsider, 2)
