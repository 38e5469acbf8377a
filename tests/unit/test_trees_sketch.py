"""Quantile summaries: bounds hold for every rank, and merging and pruning add what they say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.trees.sketch import Summary, edges_of, merge, prune, query, summarize

EMPTY = Summary(*torch.zeros(4, 0, dtype=torch.float64))


@st.composite
def shards(draw):
    """Values and weights of one to five ranks, some without rows; whole weights add exactly."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    num_values = draw(st.sampled_from([3, 50, 10_000]))
    made = []
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.sampled_from([0, 1, 7, 100, 400]))
        values = torch.randint(num_values, (size,), generator=generator).double()
        weights = torch.randint(1, 9, (size,), generator=generator).double()
        made.append((values, weights))
    return made


def true_bounds(values, weights, at):
    """Weights below each place, at it or below, and at it."""
    below = torch.stack([weights[values < x].sum() for x in at])
    through = torch.stack([weights[values <= x].sum() for x in at])
    return below, through, through - below


@given(shards(), st.integers(2, 40))
def test_bounds_hold_and_the_error_is_that_of_the_contract(shards, size):
    merged = EMPTY
    for shard in shards:
        merged = merge(merged, prune(summarize(*shard), size))
    values, weights = (torch.cat(each) for each in zip(*shards))
    total = weights.sum().item()
    if not total:
        return
    below, through, at = true_bounds(values, weights, merged.values)
    assert (merged.low <= below).all() and (through <= merged.high).all()
    assert (merged.weights <= at).all()
    assert merged.total == total
    assert merged.error() <= total / (size - 1) + 1e-9
    # A query is off by half the error at most, and by the weight of the entry found.
    ranks = torch.linspace(0, total, 23, dtype=torch.float64)
    found = query(merged, ranks)
    below, through, _ = true_bounds(values, weights, merged.values[found])
    slack = merged.error() / 2 + 1e-9
    assert (below - slack <= ranks).all() and (ranks <= through + slack).all()


@given(shards(), st.integers(2, 40))
def test_a_second_pruning_adds_its_own_share(shards, size):
    merged = EMPTY
    for shard in shards:
        merged = prune(merge(merged, prune(summarize(*shard), size)), size)
    prunings = len(shards) + 1
    assert merged.error() <= prunings * merged.total / (size - 1) + 1e-9
    assert len(merged.values) <= size


@given(shards())
def test_without_pruning_a_merge_is_the_summary_of_all_rows(shards):
    merged = EMPTY
    for shard in shards:
        merged = merge(merged, summarize(*shard))
    whole = summarize(*(torch.cat(each) for each in zip(*shards)))
    assert all(map(torch.equal, merged, whole)) and whole.error() == 0


def test_quantiles_that_share_a_value_share_an_edge():
    weights = torch.ones(100)
    weights[40] = 1000
    edges = edges_of(summarize(torch.arange(100.0), weights), 8)
    assert edges.tolist() == [40.0] + 6 * [torch.inf]


def test_few_values_get_a_bin_each():
    edges = edges_of(summarize(torch.tensor([3.0, 1.0, 3.0, 2.0]), torch.ones(4)), 5)
    assert edges.tolist() == [2.0, 3.0, torch.inf, torch.inf]
    assert edges_of(EMPTY, 3).tolist() == [torch.inf, torch.inf]


@pytest.mark.parametrize("num_bins", [2, 16, 256])
def test_bins_have_nearly_equal_weight(num_bins):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5000, generator=generator).double()
    weights = torch.rand(5000, generator=generator).double()
    edges = edges_of(prune(summarize(values, weights), 8 * num_bins), num_bins)
    bins = torch.bucketize(values, edges, right=True)
    sums = torch.zeros(num_bins).double().index_add_(0, bins, weights)
    total = weights.sum()
    most = total / num_bins + total / (8 * num_bins - 1) + 2 * weights.max()
    assert len(edges) == num_bins - 1 and sums.max() <= most
