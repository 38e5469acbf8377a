"""Bytes of trees, halving-doubling and the chain equal formulas written without the code."""

import functools

import pytest
import torch

from labkit import calc, run
from labkit.collectives import (
    double_tree_all_reduce,
    halving_doubling_all_reduce,
    ring_broadcast,
    stream,
    tree_all_reduce,
    tree_broadcast,
    tree_reduce,
)

WORLD_SIZES = [1, 2, 3, 4, 7, 8]
NUMELS = [0, 1, 2, 7, 64, 1003]
ITEMSIZE, BLOCK_BYTES = 8, 1000  # a block is 125 elements
BY_CALC = {
    "tree_all_reduce": ("all_reduce", "tree"),
    "double_tree_all_reduce": ("all_reduce", "double_tree"),
    "halving_doubling_all_reduce": ("all_reduce", "halving_doubling"),
    "tree_reduce": ("reduce", "tree"),
    "tree_broadcast": ("broadcast", "tree"),
    "ring_broadcast": ("broadcast", "ring"),
}
ALL_REDUCES = {
    "tree_all_reduce": tree_all_reduce,
    "double_tree_all_reduce": double_tree_all_reduce,
    "halving_doubling_all_reduce": halving_doubling_all_reduce,
}
ROOTED = {
    "tree_reduce": tree_reduce,
    "tree_broadcast": tree_broadcast,
    "ring_broadcast": ring_broadcast,
}


def cases(world_size):
    """(name, numel, root); an all-reduce has no root."""
    roots = {0, min(1, world_size - 1), world_size - 1}  # the others are these, renumbered
    rooted = [(name, numel, root) for name in ROOTED for numel in (0, 7, 1003) for root in roots]
    return [(name, numel, None) for name in ALL_REDUCES for numel in NUMELS] + rooted


def call_each(world):
    for name, numel, root in cases(world.size):
        x = torch.ones(numel, dtype=torch.float64)
        with world.label(f"{name} {numel} {root}"):
            if root is None:
                ALL_REDUCES[name](x, world, block_bytes=BLOCK_BYTES)
            else:
                ROOTED[name](x, root, world, block_bytes=BLOCK_BYTES)


@functools.cache
def operations(world_size):
    """By rank, by label: what `call_each` did."""
    by_rank = []
    for timeline in run(call_each, world_size, timeout=600).timeline:
        by_label = {}
        for operation in timeline.operations:
            by_label.setdefault(operation.label, []).append(operation)
        by_rank.append(by_label)
    return by_rank


def predicted(name, numel, world_size, rank, root):
    """(bytes, messages) that a rank sends."""
    options = {"rank": rank, "root": root, "block_bytes": BLOCK_BYTES, "itemsize": ITEMSIZE}
    one = calc.collective(*BY_CALC[name], world_size, ITEMSIZE * numel, **options)
    return one.sent_bytes, one.messages


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_sends_what_calc_says(world_size):
    for rank, by_label in enumerate(operations(world_size)):
        for name, numel, root in cases(world_size):
            done = by_label.get(f"{name} {numel} {root}", [])
            sends = [op for op in done if op.kind == "send"]
            assert {op.kind for op in done} <= {"send", "recv"}
            assert all(op.done_s is not None for op in done), "a message was not waited for"
            assert (sum(op.sent_bytes for op in sends), len(sends)) == predicted(
                name, numel, world_size, rank, root
            ), (name, numel, root, rank)


@pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
def test_no_message_is_longer_than_a_block_but_the_halves_that_come_back(world_size):
    for by_label in operations(world_size):
        for label, done in by_label.items():
            if "halving" not in label:
                assert max(op.payload_bytes for op in done) <= BLOCK_BYTES


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_halving_doubling_sends_as_little_as_a_ring(world_size):
    total = sum(
        operation.sent_bytes
        for by_label in operations(world_size)
        for operation in by_label["halving_doubling_all_reduce 1003 None"]
    )
    ring = [
        calc.collective(
            "all_reduce", "ring", world_size, 1003 * ITEMSIZE, itemsize=ITEMSIZE, rank=r
        ).sent_bytes
        for r in range(world_size)
    ]
    assert total == sum(ring)


@pytest.mark.parametrize("world_size", [4, 8])
def test_partners_of_halving_doubling_are_at_powers_of_two(world_size):
    for rank, by_label in enumerate(operations(world_size)):
        done = by_label["halving_doubling_all_reduce 64 None"]
        sent_to = [op.peer for op in done if op.kind == "send"]
        distances = [2**step for step in range(world_size.bit_length() - 1)]
        partners = [rank ^ distance for distance in distances]
        assert sent_to == [*partners, *reversed(partners)]


@pytest.mark.parametrize("world_size", [5, 7, 8])
def test_no_rank_of_a_double_tree_sends_more_than_twice_the_tensor(world_size):
    tensor_bytes = 64 * ITEMSIZE
    sent, in_one_tree = (
        [
            sum(operation.sent_bytes for operation in by_label[f"{name} 64 None"])
            for by_label in operations(world_size)
        ]
        for name in ("double_tree_all_reduce", "tree_all_reduce")
    )
    assert max(sent) <= 2 * tensor_bytes < max(in_one_tree) == 3 * tensor_bytes


@pytest.mark.parametrize("world_size", [3, 4, 7])
def test_two_blocks_of_a_leaf_of_a_double_tree_leave_before_it_waits(world_size):
    for by_label in operations(world_size):
        done = by_label["double_tree_all_reduce 1003 None"]
        began_to_wait_s = min(op.waited_s for op in done if op.kind == "recv")
        second = [op for op in done if op.kind == "send"][1]
        assert second.posted_s < began_to_wait_s


def reduce_in_place(world, all_reduce, numel):
    x = torch.ones(numel)
    all_reduce(x, world, out=x)


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_in_place_they_need_a_few_blocks_besides_the_tensor(name):
    numel = 32 * 2**20 // 4
    for memory in run(reduce_in_place, 3, (ALL_REDUCES[name], numel)).memory:
        assert memory.growth_bytes < numel * 4 + 4 * stream.BLOCK_BYTES + 12 * 2**20
