"""The cut of a model into stages."""

import random
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from labkit.pipeline import balanced_stages, even_stages, stage_costs


def best_by_trying(costs, num_stages, speeds=None) -> float:
    """The slowest stage of the best of all cuts."""
    cuts = combinations(range(1, len(costs)), num_stages - 1)
    speeds = speeds or [1] * num_stages
    return min(
        max(
            sum(costs[a:b]) / speed
            for (a, b), speed in zip(pairwise((0, *cut, len(costs))), speeds, strict=True)
        )
        for cut in cuts
    )


def test_no_cut_has_a_faster_slowest_stage():
    draw = random.Random(0)
    for _ in range(200):
        costs = [draw.choice([0, 1, 2, 0.5, 7]) for _ in range(draw.randint(1, 9))]
        num_stages = draw.randint(1, len(costs))
        stages = balanced_stages(costs, num_stages)
        assert max(stage_costs(costs, stages)) == best_by_trying(costs, num_stages)
        assert [layer for stage in stages for layer in stage] == list(range(len(costs)))
        assert all(stages)


def test_a_fast_rank_gets_more_layers():
    draw = random.Random(0)
    for _ in range(200):
        costs = [draw.choice([0, 1, 2, 0.5, 7]) for _ in range(draw.randint(1, 9))]
        num_stages = draw.randint(1, len(costs))
        speeds = [draw.choice([1, 0.5, 4]) for _ in range(num_stages)]
        stages = balanced_stages(costs, num_stages, speeds)
        times = [sum(costs[i] for i in each) / v for each, v in zip(stages, speeds, strict=True)]
        assert max(times) == best_by_trying(costs, num_stages, speeds)
        assert all(stages)
    assert balanced_stages([1] * 32, 2, [3, 1]) == [range(24), range(24, 32)]


def test_an_expensive_head_gets_a_stage_of_its_own():
    costs = [1, 4, 4, 4, 4, 9]
    assert stage_costs(costs, even_stages(6, 3)) == [5, 8, 13]
    assert stage_costs(costs, balanced_stages(costs, 3)) == [9, 8, 9]


def test_the_most_even_of_equally_good_cuts_is_chosen():
    # 34 layers, the last worth two: the slowest has 5 in any cut, and no stage need have but 1.
    costs = [0, *[1] * 32, 2.1]
    loads = stage_costs(costs, balanced_stages(costs, 8))
    assert max(loads) == 5
    assert sorted(loads)[0] >= 3.1


def test_an_even_cut_differs_by_one_layer_at_most():
    assert even_stages(7, 3) == [range(3), range(3, 5), range(5, 7)]


@pytest.mark.parametrize(
    ("costs", "num_stages", "reason"),
    [
        ([1, 2], 3, "num_stages=3: .* there are 2"),
        ([1, 2], 0, "num_stages=0"),
    ],
)
def test_an_impossible_number_of_stages_is_named(costs, num_stages, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        balanced_stages(costs, num_stages)


@pytest.mark.parametrize("speeds", [[1], [1, 0], [1, -2]])
def test_each_stage_needs_a_speed(speeds):
    with pytest.raises(ValueError, match="speeds"):
        balanced_stages([1, 2, 3], 2, speeds)


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor, list])
def test_costs_come_in_any_list_of_numbers(kind):
    stages = balanced_stages(kind([1.0, 4.0, 4.0, 9.0]), 2)
    assert stages == [range(3), range(3, 4)]
    assert stage_costs(kind([1.0, 4.0, 4.0, 9.0]), stages) == [9, 9]
