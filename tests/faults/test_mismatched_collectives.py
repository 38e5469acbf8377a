"""Collectives made of messages: what ranks mean is compared whole, not piece by piece.

Pieces are flat, so those of two shapes with as many elements fit each other.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from labkit import Deadlock, Mismatch, run
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


def refused(program, world_size, *args, error=Mismatch):
    with pytest.raises(error) as caught:
        run(program, world_size, args=args, timeout=600)
    said = str(caught.value).splitlines()[0]
    assert "test_mismatched_collectives.py, line" in said
    return said


def another_shape(world, collective):
    collective(torch.ones((2, 3) if world.rank == 1 else (3, 2)), group=world)


def test_another_shape_of_as_many_elements_is_an_error():
    with ThreadPoolExecutor(4) as pool:  # side by side: these ranks mostly wait
        texts = pool.map(partial(refused, another_shape, 3), ON_X)
        for collective, said in zip(ON_X, texts, strict=True):
            shapes = re.findall(rf"{collective.__name__} of float32 (\(.*?\))", said)
            assert {"(3, 2)", "(2, 3)"} <= set(shapes), said


def test_another_shape_on_another_host_is_an_error_too():
    def program(world):
        x = torch.ones((2, 3) if world.rank < 2 else (3, 2))
        hierarchical_all_reduce(x, *two_tiers(world, 2))

    assert "hierarchical_all_reduce of float32 (2, 3)" in refused(program, 4)


def test_another_number_of_all_elements_is_an_error():
    def program(world):  # with 5 and 6 elements on two ranks, rank 0 holds 3 of either
        numel = 5 + world.rank
        ring_all_gather(torch.ones(3), numel, world)

    assert "ring_all_gather of float32 (6,)" in refused(program, 2)


def test_another_algorithm_is_an_error():
    def program(world):
        algorithm = ring_all_reduce if world.rank == 1 else tree_all_reduce
        algorithm(torch.ones(3), world)

    # Where no message of one meets one of the other, they wait for each other instead.
    assert "rank 1" in refused(program, 3, error=(Mismatch, Deadlock))


def another_root(world, collective):
    collective(torch.ones(3), 1 if world.rank == 1 else 0, world)


def test_another_root_is_an_error():
    refuse = partial(refused, another_root, 3, error=(Mismatch, Deadlock))
    with ThreadPoolExecutor() as pool:
        for said in pool.map(refuse, [tree_broadcast, ring_broadcast, tree_reduce]):
            assert "rank 1" in said


def other_rows(world, sent, expected):
    send, recv = [1] * world.size, [1] * world.size
    if world.rank == 1:
        send[0] = sent
    if world.rank == 0:
        recv[1] = expected
    x = torch.ones(sum(send), 2)
    pairwise_all_to_all(x, world, send_splits=send, recv_splits=recv)


def test_rows_that_one_rank_sends_and_another_does_not_expect_are_an_error():
    cases = [(0, 1, Deadlock), (1, 0, Deadlock), (2, 1, Mismatch)]
    with ThreadPoolExecutor() as pool:
        ends = [
            pool.submit(refused, other_rows, 3, sent, expected, error=error)
            for sent, expected, error in cases
        ]
    for end in ends:
        assert "rank 1" in end.result()


@pytest.mark.parametrize("kind", ["dtype", "label"])
def test_another_dtype_or_label_is_an_error(kind):
    def program(world):
        is_odd = world.rank == 1
        dtype = torch.float64 if is_odd and kind == "dtype" else torch.float32
        with world.label("bias" if is_odd and kind == "label" else "weight"):
            ring_all_reduce(torch.ones(3, dtype=dtype), world)

    assert ("float64" if kind == "dtype" else "bias") in refused(program, 3)


def test_calls_that_match_leave_nothing_but_messages_in_the_journal():
    def program(world):
        for collective in ON_X:
            collective(torch.ones(3, 2), group=world)

    result = run(program, 3)
    kinds = {each.kind for timeline in result.timeline for each in timeline.operations}
    assert kinds == {"send", "recv"}
