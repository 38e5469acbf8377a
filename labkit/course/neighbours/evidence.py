"""Traffic of neighbours of pretraining: adapters under data parallelism, merged histograms."""

import torch
from torch import Tensor, nn

from labkit import Group
from labkit.collectives import ring_all_reduce
from labkit.data_parallel import NaiveDDP
from labkit.interview.real_run import real_run, run

_FEATURES, _LORA_RANK, _BINS = 256, 4, 64


class _Adapted(nn.Module):
    """W x + B A x, of which W is frozen where `frozen`."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.whole = nn.Linear(_FEATURES, _FEATURES, bias=False).requires_grad_(not frozen)
        self.down = nn.Linear(_FEATURES, _LORA_RANK, bias=False)
        self.up = nn.Linear(_LORA_RANK, _FEATURES, bias=False)

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.whole(x_BD) + self.up(self.down(x_BD))


@real_run
def adapter_sent_bytes(world_size: int, frozen: bool) -> int:
    """Bytes of gradients that rank 0 sends in a step of NaiveDDP, by rings.

    One 256 x 256 matrix with an adapter of rank 4 beside it, float32; frozen: the matrix is.
    """
    return run(_adapted_step, world_size, (frozen,)).traffic[0].by_operation["send"].sent_bytes


def _adapted_step(world: Group, frozen: bool) -> None:
    torch.manual_seed(0)
    model = NaiveDDP(_Adapted(frozen), world, all_reduce=ring_all_reduce)
    model(torch.ones(2, _FEATURES)).square().mean().backward()
    model.reduce_gradients()


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
