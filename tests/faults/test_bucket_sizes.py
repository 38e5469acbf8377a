"""DDP in buckets of a layer, of two and of all: each run is predicted from another one's journal.

The journals are of real runs of examples/bucket_sizes.py, which measures and predicts again;
`python -m tests.recorded buckets_of_1 buckets_of_2 buckets_of_5` records them again. The same on
exact times: tests/unit/test_profile_changes.py.
"""

import pytest

from labkit.inject.timed_training import LAYER_BYTES, LAYERS
from labkit.profile import what_if
from tests import recorded
from tests.an_example import load_example

example = load_example("bucket_sizes")
SIZES = example.LAYERS_PER_BUCKET


@pytest.fixture(scope="module")
def traces():
    """By layers per bucket."""
    return {size: recorded.read(f"buckets_of_{size}") for size in SIZES}


@pytest.mark.parametrize("before", SIZES)
@pytest.mark.parametrize("after", SIZES)
def test_other_buckets_are_predicted_within_15_percent(traces, before, after):
    found = example.predicted_s(traces[before], before == 2, after)
    assert found == pytest.approx(traces[after].seconds, rel=0.15)


def test_merging_all_buckets_costs_more_than_it_saves(traces):
    one_layer, all_layers = (example.predicted_s(traces[2], True, n) for n in (1, LAYERS))
    assert one_layer < all_layers
    assert traces[1].seconds < traces[LAYERS].seconds


def test_one_size_of_buckets_does_not_show_what_a_message_costs(traces):
    with pytest.raises(ValueError, match="give fixed_s"):
        what_if.buckets(traces[1], 2 * LAYER_BYTES)


@pytest.mark.parametrize("layers_per_bucket", SIZES)
def test_a_run_on_the_link_has_the_buckets_of_the_recorded_one(traces, layers_per_bucket):
    """Numbers and bytes of its all-reduces, and the least that its steps can take."""
    live = example.trace_of(layers_per_bucket)
    for rank, own in traces[layers_per_bucket].ranks.items():
        sizes, recorded_sizes = (
            [x.nbytes for x in each.exchanges] for each in (live.ranks[rank], own)
        )
        assert sizes == recorded_sizes
        assert sum(sizes) == example.STEPS * LAYERS * LAYER_BYTES
    assert live.seconds > example.STEPS * LAYERS * 0.018  # forward and backward
