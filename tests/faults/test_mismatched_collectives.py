"""Collectives made of messages: what ranks mean is compared whole, not piece by piece.

Pieces are flat, so those of two shapes with as many elements fit each other.
"""

import re

import pytest
import torch

from labkit import Mismatch, run
from labkit.collectives import (
    double_tree_all_reduce,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    pairwise_all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_broadcast,
    ring_reduce_scatter,
    tree_all_reduce,
    tree_broadcast,
    tree_reduce,
    two_tiers,
)

ON_X = (
    ring_all_reduce,
    ring_reduce_scatter,
    ring_broadcast,
    tree_reduce,
    tree_broadcast,
    tree_all_reduce,
    double_tree_all_reduce,
    halving_doubling_all_reduce,
)


def refused(program, world_size, *args):
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, args=args, timeout=20)
    said = str(caught.value).splitlines()[0]
    assert "test_mismatched_collectives.py, line" in said
    return said


def another_shape(world, collective):
    collective(torch.ones((2, 3) if world.rank == 1 else (3, 2)), group=world)


@pytest.mark.parametrize("collective", ON_X, ids=lambda function: function.__name__)
def test_another_shape_of_as_many_elements_is_an_error(collective):
    said = refused(another_shape, 3, collective)
    assert said.startswith(f"in {collective.__name__} #1, rank 1 passes shape (2, 3)")


def test_another_shape_on_another_host_is_an_error_too():
    def program(world):
        x = torch.ones((2, 3) if world.rank < 2 else (3, 2))
        hierarchical_all_reduce(x, *two_tiers(world, 2))

    assert "in hierarchical_all_reduce #1 of group world" in refused(program, 4)


def test_another_number_of_all_elements_is_an_error():
    def program(world):  # with 5 and 6 elements on two ranks, rank 0 holds 3 of either
        numel = 5 + world.rank
        ring_all_gather(torch.ones(3), numel, world)

    assert "in ring_all_gather #1" in refused(program, 2)


def test_another_algorithm_is_an_error():
    def program(world):
        algorithm = ring_all_reduce if world.rank == 1 else tree_all_reduce
        algorithm(torch.ones(3), world)

    assert re.search(r"rank 1 calls ring_all_reduce #1 .*call tree_all_reduce", refused(program, 3))


@pytest.mark.parametrize("broadcast", [tree_broadcast, ring_broadcast, tree_reduce])
def test_another_root_is_an_error(broadcast):
    def program(world):
        broadcast(torch.ones(3), 1 if world.rank == 1 else 0, world)

    assert "rank 1 names rank 1 as the root" in refused(program, 3)


def test_the_same_calls_in_another_order_are_an_error():
    def program(world):
        weight, bias = torch.ones(3), torch.zeros(3)
        if world.rank == 1:
            ring_all_reduce(bias, world)
            ring_all_reduce(weight, world)
        else:
            ring_all_reduce(weight, world)
            ring_all_reduce(bias, world)

    assert "make the same calls in another order" in refused(program, 3)


@pytest.mark.parametrize("sent, expected", [(0, 1), (1, 0), (2, 1)])
def test_rows_that_one_rank_sends_and_another_does_not_expect_are_an_error(sent, expected):
    def program(world):
        send, recv = [1] * world.size, [1] * world.size
        if world.rank == 1:
            send[0] = sent
        if world.rank == 0:
            recv[1] = expected
        x = torch.ones(sum(send), 2)
        pairwise_all_to_all(x, world, send_splits=send, recv_splits=recv)

    assert f"rank 1 sends rank 0 {sent} rows" in refused(program, 3)


@pytest.mark.parametrize("kind", ["dtype", "label"])
def test_another_dtype_or_label_is_an_error(kind):
    def program(world):
        is_odd = world.rank == 1
        dtype = torch.float64 if is_odd and kind == "dtype" else torch.float32
        with world.label("bias" if is_odd and kind == "label" else "weight"):
            ring_all_reduce(torch.ones(3, dtype=dtype), world)

    assert "in ring_all_reduce #1, rank 1" in refused(program, 3)


def test_calls_that_match_are_compared_and_leave_no_trace_in_the_journal():
    def program(world):
        for collective in ON_X:
            collective(torch.ones(3, 2), group=world)

    result = run(program, 3)
    kinds = {each.kind for timeline in result.timeline for each in timeline.operations}
    assert kinds == {"send", "recv"}
