"""Bytes of boosted trees, from the journal, equal calc's, level by level."""

from dataclasses import replace

import pytest
import torch

from labkit import calc, run
from labkit.trees import BoostingConfig, train

NUM_FEATURES, NUM_BINS = 7, 16
CONFIG = BoostingConfig(num_trees=2, max_depth=4, num_bins=NUM_BINS)


def trained(world, config, num_rows):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(num_rows, NUM_FEATURES, generator=generator)
    labels = rows[:, 0] * rows[:, 1]
    return train(
        world, *(each.tensor_split(world.size)[world.rank] for each in (rows, labels)), config
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("merge", ["all_reduce", "reduce_scatter"])
def test_levels_send_what_calc_says(world_size, merge):
    sent_by_rows = []
    for num_rows in (300, 1200):
        result = run(trained, world_size, (replace(CONFIG, merge=merge, gamma=0.0), num_rows))
        trees = result.values[0].trees
        levels = [num for tree in trees for num in tree.level_sizes()[: CONFIG.max_depth]]
        assert len(levels) == 2 * CONFIG.max_depth
        for rank, traffic in enumerate(result.traffic):
            expected = [
                calc.boosting_level_bytes(merge, world_size, NUM_FEATURES, NUM_BINS, num, rank=rank)
                for num in levels
            ]
            sends = traffic.by_operation.get("send")
            sums = sum(float(each["sums"]) for each in expected)
            assert (sends.sent_bytes if sends else 0) == sums
            if merge == "reduce_scatter":
                gathered = traffic.by_operation["all_gather"].sent_bytes
                assert gathered - of_summaries(num_rows, world_size) == sum(
                    float(each["candidates"]) for each in expected
                )
        sent_by_rows.append((levels, result.traffic[0].sent_bytes))
    (few, sent_for_few), (many, sent_for_many) = sent_by_rows
    if few == many and merge == "all_reduce" and world_size > 1:  # but for summaries
        longer = of_summaries(1200, world_size) - of_summaries(300, world_size)
        assert sent_for_many - sent_for_few == longer


def of_summaries(num_rows, world_size):
    """Four float64 for each entry of a feature's summary, to each other rank; nothing is pruned."""
    longest = -(-num_rows // world_size)
    return (world_size - 1) * NUM_FEATURES * 4 * longest * 8
