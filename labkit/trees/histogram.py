"""Sum gradients by node, feature and bin, on each rank, and merge the sums of all ranks.

    rank 0   its rows -> sums_FMB2 -+                    all ranks: sums_FMB2 of all rows
    rank 1   its rows -> sums_FMB2 -+-> all-reduce      ->
    rank 2   its rows -> sums_FMB2 -+   reduce-scatter  -> rank r: the sums of its F/n features

For each of M nodes, F features and B bins there are two sums: of the gradients g and the second
derivatives h of the rows in that bin. Only these sums decide a split, and sums can be merged. The
bytes on the wire depend on M, F and B, and not on the number of rows.

Fixed point. Floating-point addition is not associative: (a + b) + c and a + (b + c) may differ in
the last bit. Ranks add in another order than one process, so a tie between two splits may be broken
in another way. Sums of whole numbers are exact in any order. FixedPoint rounds each g and h to a
multiple of a unit, a power of two, and ranks send sums of int64. No sum over any set of rows has
more than 2^52 units, so that float64 holds it exactly, too.

Subtraction. A row of a node is in its left or its right child. The sums of one child are those of
the parent less those of the other: only the child with less weight is summed and sent.

Layout: after an all-reduce every rank has all sums; after a reduce-scatter rank r has its F/n
features, and F is padded to a multiple of n.
Wire, D = 16 F M B bytes: all-reduce 2(n-1)/n D per rank, reduce-scatter (n-1)/n D.
Papers: Chen and Guestrin, "XGBoost", arXiv:1603.02754; Ke et al., "LightGBM", NeurIPS 2017
(subtraction, reduce-scatter); Demmel and Nguyen, "Fast reproducible floating-point summation",
ARITH 2013 (rounding before the sum).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.collectives import ring_all_reduce, ring_reduce_scatter
from labkit.comm import Group
from labkit.trees.bins import ColumnBlocks, DenseBins

MERGES = ("all_reduce", "reduce_scatter")
_BITS = 52
"""Sums stay below 2^52 units, which float64 and int64 both hold exactly."""


@dataclass(frozen=True)
class FixedPoint:
    """The units of g and h, powers of two, the same on every rank.

    Fewer than 2^52 units are exact in float64: round(x) * units, their sums and differences, too.
    """

    units_2: Tensor

    @classmethod
    def of(cls, pairs_N2: Tensor, group: Group) -> FixedPoint:
        """Choose units for the g and h of all ranks' rows. Wire: two all-reduces, 3 numbers."""
        rows = group.all_reduce(torch.tensor([len(pairs_N2)]))
        least = torch.finfo(torch.float64).tiny  # no rows, or only zeros
        own = torch.cat([pairs_N2.abs(), torch.full((1, 2), least, dtype=torch.float64)])
        largest = group.all_reduce(own.amax(0), "max")
        bits = [math.frexp(bound)[1] for bound in (largest * rows.clamp(min=1)).tolist()]
        return cls(torch.tensor([2.0 ** max(each - _BITS, -1000) for each in bits]).double())

    def round(self, pairs_N2: Tensor) -> Tensor:
        """Return g and h as whole numbers of units, (N, 2) float64."""
        return (pairs_N2 / self.units_2).round()


def local_sums(
    bins: DenseBins | ColumnBlocks, slot_N: Tensor, num_slots: int, pairs_N2: Tensor
) -> Tensor:
    """Return this rank's sums, (F, num_slots, B, 2) float64, over the present values.

    slot_N: the node that a row counts for, 0 to num_slots - 1; -1: for none. pairs_N2: g and h.
    A pair travels as one complex number, so that one pass adds both.
    """
    width = bins.num_bins + 1  # the last is for missing values
    pairs_N = torch.view_as_complex(pairs_N2)
    first_N = (slot_N * width).int()
    sums, before = [], None
    for rows, bin_of_row in bins.entries(slot_N >= 0):
        if rows is not before:  # the same rows for all features, if they are dense
            first, pairs, before = first_N[rows], pairs_N[rows], rows
        total = torch.zeros(num_slots * width, dtype=pairs_N.dtype)
        sums.append(total.index_add_(0, first + bin_of_row, pairs))
    by_slot_FMB2 = torch.view_as_real(torch.stack(sums)).view(-1, num_slots, width, 2)
    return by_slot_FMB2[:, :, :-1].contiguous()


class Merged:
    """Merge histograms in one of two ways, and know which features this rank has afterwards."""

    def __init__(self, merge: str, num_features: int, group: Group) -> None:
        self.merge, self.group, self.num_features = merge, group, num_features
        self.by_feature = merge == "reduce_scatter"
        width = -(-num_features // group.size) if self.by_feature else num_features
        self.first = group.rank * width if self.by_feature else 0
        self.padded = width * group.size if self.by_feature else num_features

    def sum(self, sums_FMB2: Tensor) -> Tensor:
        """Return the sums over all ranks, of this rank's features: (F or F/n, M, B, 2)."""
        if not self.by_feature:
            return ring_all_reduce(sums_FMB2, self.group)
        shape = (self.padded - self.num_features, *sums_FMB2.shape[1:])
        padded = torch.cat([sums_FMB2, sums_FMB2.new_zeros(shape)])
        own = ring_reduce_scatter(padded, self.group, in_place=True)
        return own.view(-1, *sums_FMB2.shape[1:])
