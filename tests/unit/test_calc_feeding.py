"""Feeding: rates, idle readers and a sampler's padding, against counting."""

import pytest
from torch.utils.data import DistributedSampler

from labkit import calc
from labkit.data.shards import shards_of


def test_all_gpus_read_at_once():
    assert calc.feed_bytes_per_s(32, 400, 110e3).to("GB/s") == pytest.approx(1.408)
    assert calc.feed_bytes_per_s(1, 400, 110e3).to("MB/s") == pytest.approx(44)


@pytest.mark.parametrize("num_shards", [1, 5, 16, 100])
@pytest.mark.parametrize("num_readers", [1, 3, 16])
def test_idle_readers_are_the_places_that_no_shard_fills(num_shards, num_readers):
    dealt = [len(shards_of(num_shards, reader, num_readers)) for reader in range(num_readers)]
    idle = sum(max(dealt) - each for each in dealt) / (max(dealt) * num_readers)
    assert float(calc.idle_reader_share(num_shards, num_readers)) == pytest.approx(idle)


@pytest.mark.parametrize("num_ranks", [1, 3, 4, 7])
@pytest.mark.parametrize("num_samples", [8, 10, 12])
def test_padding_is_that_of_torchs_sampler(num_samples, num_ranks):
    drawn = sum(len(DistributedSampler(range(num_samples), num_ranks, 0)) for _ in range(num_ranks))
    assert calc.sampler_padding(num_samples, num_ranks) == drawn - num_samples


def test_counts_of_nothing_are_refused():
    with pytest.raises(ValueError, match="num_gpus"):
        calc.feed_bytes_per_s(0, 1, 1)
    with pytest.raises(ValueError, match="sample_bytes"):
        calc.feed_bytes_per_s(1, 1, 0)
    with pytest.raises(ValueError, match="num_readers"):
        calc.idle_reader_share(1, 0)
    with pytest.raises(ValueError, match="num_ranks"):
        calc.sampler_padding(1, 0)
