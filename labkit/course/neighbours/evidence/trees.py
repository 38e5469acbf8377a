"""Traffic of gradient-boosted trees over row shards: merged histograms."""

import torch
from torch import Tensor

from labkit import Group
from labkit.collectives import ring_all_reduce
from labkit.interview.real_run import real_run, run

_BINS = 64


@real_run
def histogram_sent_bytes(world_size: int, num_rows: int, num_features: int) -> int:
    """Bytes that rank 0 sends to merge gradient histograms of `num_rows` rows over all ranks.

    Of each feature 64 bins, in each the sum of gradients and of second derivatives, float32.
    """
    result = run(_merged_by_each, world_size, (num_rows, num_features))
    return result.traffic[0].by_operation["send"].sent_bytes


@real_run
def merged_histogram_difference(world_size: int, num_rows: int, num_features: int) -> float:
    """Return the largest difference between the merged histogram and that of all rows in one
    process.

    Gradients are whole numbers here, so that their order of addition does not matter.
    """
    merged = run(_merged_by_each, world_size, (num_rows, num_features)).values[0]
    rows, gradients = _rows(num_rows, num_features)
    return (merged - _histogram(rows, gradients)).abs().max().item()


def _merged_by_each(world: Group, num_rows: int, num_features: int) -> Tensor:
    rows, gradients = (
        each.tensor_split(world.size)[world.rank] for each in _rows(num_rows, num_features)
    )
    histogram = _histogram(rows, gradients)
    flat = histogram.flatten()
    return ring_all_reduce(flat, world).view_as(histogram)


def _rows(num_rows: int, num_features: int) -> tuple[Tensor, Tensor]:
    """Return the bin of each feature of each row, and its gradient and second derivative."""
    generator = torch.Generator().manual_seed(0)
    bins_NF = torch.randint(_BINS, (num_rows, num_features), generator=generator)
    gradients_N2 = torch.randint(-8, 9, (num_rows, 2), generator=generator).float()
    return bins_NF, gradients_N2


def _histogram(bins_NF: Tensor, gradients_N2: Tensor) -> Tensor:
    """By feature and bin, the sums over the rows that fall into it."""
    num_features = bins_NF.shape[1]
    sums = torch.zeros(num_features, _BINS, 2)
    for feature in range(num_features):
        sums[feature].index_add_(0, bins_NF[:, feature], gradients_N2)
    return sums
