"""The inputs that a ring all-reduce is graded on, and the sums that are accepted."""

import random

import pytest
import torch

from labkit.grade.graders.ring_inputs import (
    expected_sum,
    holds_whole_numbers,
    is_wrong,
    random_cases,
)


def test_inputs_cover_what_rings_trip_over():
    cases = random_cases(3, random.Random(0))
    inputs = [case.arguments[0][0] for case in cases]
    assert {0, 1, 2} <= {x.numel() for x in inputs}
    assert max(x.numel() for x in inputs) > 20_000, "hidden traffic must stand out"
    assert len({x.dtype for x in inputs}) == 5
    assert {x.dim() for x in inputs} == {0, 1, 2, 3}
    assert sum(not x.is_contiguous() for x in inputs) == 2
    assert sum(any(case.delays_s) for case in cases) == 2
    assert any(x.numel() == 0 and x.dim() == 2 for x in inputs), "an empty result has a shape too"
    assert inputs[0].numel() % 3 == 0 and inputs[1].numel() % 3, "plain ones first"


@pytest.mark.parametrize("seed", range(20))
def test_one_message_of_a_ring_is_changed_after_all_that_can_be_said_without(seed):
    for world_size in (2, 3, 4):
        *plain, altered = random_cases(world_size, random.Random(seed))
        assert all(case.altered is None for case in plain)
        rank, number = altered.altered
        assert 0 <= rank < world_size and 1 <= number <= 2 * (world_size - 1)
    assert all(case.altered is None for case in random_cases(1, random.Random(seed)))


def test_whole_numbers_are_too_large_for_other_dtypes_of_their_width():
    for seed in range(20):
        inputs = [case.arguments[0][0] for case in random_cases(2, random.Random(seed))]
        integers = {x.dtype: x for x in inputs if not (x.is_floating_point() or x.is_complex())}
        assert len(integers) == 2
        for dtype, narrow in ((torch.int32, torch.float32), (torch.int64, torch.float64)):
            if dtype in integers:
                assert not torch.equal(integers[dtype].to(narrow).to(dtype), integers[dtype])


def test_inputs_come_from_the_seed_alone():
    ours, theirs, others = (random_cases(3, random.Random(seed)) for seed in (1, 1, 2))
    for mine, again in zip(ours, theirs):
        assert mine.label == again.label and mine.delays_s == again.delays_s
        for rank in range(3):
            assert torch.equal(mine.arguments[rank][0], again.arguments[rank][0])
    assert [case.label for case in ours] != [case.label for case in others]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sums_in_any_order_are_accepted_and_a_lost_summand_is_not(world_size):
    for case in random_cases(world_size, random.Random(world_size)):
        inputs = [arguments[0] for arguments in case.arguments]
        total, tolerance = expected_sum(case)
        for order in (inputs, inputs[::-1]):
            summed = order[0].clone()
            for x in order[1:]:
                summed += x
            assert summed.dtype == inputs[0].dtype
            assert not is_wrong(summed, total, tolerance).any(), case.label
        if holds_whole_numbers(inputs[0]):
            assert not tolerance.any()
        changed = inputs[0] != 0
        assert is_wrong(summed - inputs[0], total, tolerance)[changed.flatten()].all(), case.label
