"""Top-k: of each bucket only the largest entries travel, with their places.

    rank 0   0.1 -3.0  0.2  0.9     k = 1: (1, -3.0)  -+
    rank 1   2.0  0.1 -0.3  0.4     k = 1: (0,  2.0)  -+- all-gather ->  2.0 -3.0  0  0

Which places are the largest differs by rank, so there is nothing to add up on the way: an
all-gather, whose bytes grow with the ranks, takes the place of an all-reduce.
Wire: every rank sends (n-1) k (8 + itemsize) bytes round the ring, k = ratio times the numel.
An all-reduce sends 2(n-1)/n numel itemsize: with float32 top-k sends less below ratio = 2/(3n).
Papers: Aji and Heafield, "Sparse communication for distributed gradient descent",
arXiv:1704.05021. (Deep gradient compression, arXiv:1712.01887, adds what very small ratios need:
momentum correction, clipping and a warmup.)
"""

import math

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group
from labkit.data_parallel.bucketed import Bucket
from labkit.data_parallel.compression.feedback import Compressor


class TopK(Compressor):
    """Send the `ratio` of entries with the largest magnitudes, at least one."""

    def __init__(self, ratio: float, *, error_feedback: bool = True) -> None:
        """ratio: above 0, up to 1. TypeError and ValueError for any other."""
        super().__init__(error_feedback=error_feedback)
        allowed = "a part of the entries, above 0 and up to 1, such as 0.01 for one in a hundred"
        self.ratio = arguments.number("ratio", ratio, allowed, above=0, most=1)

    def exchange(self, x: Tensor, bucket: Bucket, group: Group) -> tuple[Tensor, Tensor]:
        """See `Compressor.exchange`. Wire: k places of 8 bytes and k values, all-gathered."""
        k = math.ceil(self.ratio * x.numel())
        places = x.abs().topk(k, sorted=False).indices
        all_places = group.all_gather(places)
        all_values = group.all_gather(x[places])
        own = torch.zeros_like(x).scatter_(0, places, x[places])
        total = torch.zeros_like(x)
        # Rank by rank: within one no place comes twice, so the order of adding is fixed, and with
        # it the bits, on GPUs too.
        for of_rank, values in zip(all_places.split(k), all_values.split(k), strict=True):
            total[of_rank] += values
        return total, own
