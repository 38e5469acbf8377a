"""Keep a rank's rows as bins: a dense matrix, or the present entries in blocks of columns.

    rows, nan: missing      edges        dense, bins_FN        column blocks
      0.2  nan  7.0         0.5          0  1  1               rows 0 1 2   bins 0 1 1
      0.9  nan  nan         -            M  M  0               rows 2       bins 0
      1.4  3.0  8.0         7.5          0  M  1               rows 0 2     bins 0 1

A row goes left at an edge if x < edge: bins 0 to k lie left of edge k. A split needs no values,
only bins, which take one or two bytes each. M is the bin of missing values, after all others.

A column is contiguous, so that the histogram of a feature reads one column from start to end and
writes into a few kilobytes. With sparse rows a block lists the rows that have a value. Absent
values cost nothing: they are no part of the sums, and their rows go in the default direction.

Layout: rows are sharded over the ranks, and each rank has all features of its rows. Wire: none.
Paper: Chen and Guestrin, "XGBoost", arXiv:1603.02754, sections 3.4 and 4.1 (column blocks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labkit import arguments


class Splits(NamedTuple):
    """One split for each of M nodes."""

    feature: Tensor
    """(M,) int64."""
    bin: Tensor
    """(M,) int64: this bin and those below go left."""
    default_left: Tensor
    """(M,) bool: where rows go whose value is missing."""


@dataclass(frozen=True)
class SparseRows:
    """Rows of which only some values are present, in compressed sparse rows (CSR).

    A zero that is stored is a value. ValueError where the three tensors do not belong together.
    """

    starts: Tensor
    """(N + 1,) int64: row i has the entries starts[i] to starts[i + 1] - 1."""
    features: Tensor
    """(E,) int64."""
    values: Tensor
    """(E,) float, none of them nan."""
    num_features: int

    def __post_init__(self) -> None:
        arguments.whole("num_features", self.num_features, "1 or more")
        counts = self.starts.diff()
        ends = self.starts[[0, -1]].tolist()
        if (counts < 0).any() or ends != [0, len(self.values)]:
            raise ValueError(f"starts: ascending, from 0 to {len(self.values)} entries; got {ends}")
        if len(self.features) != len(self.values):
            raise ValueError(
                f"{len(self.features)} features of {len(self.values)} values: give one for each"
            )
        if len(self.features) and not 0 <= self.features.min() <= self.features.max() < (
            self.num_features
        ):
            raise ValueError(f"features: 0 to {self.num_features - 1}, num_features less 1")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def dense(self) -> Tensor:
        """Return the same rows as a matrix with nan where a value is absent, (N, num_features)."""
        rows_NF = self.values.new_full((len(self), self.num_features), torch.nan)
        rows_NF[self.rows(), self.features] = self.values
        return rows_NF

    def rows(self) -> Tensor:
        """Return the row of each entry, (E,)."""
        return torch.repeat_interleave(torch.arange(len(self)), self.starts.diff())


Rows = Tensor | SparseRows


def columns_of(rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each feature the rows that have a value, and these values in float64."""
    if isinstance(rows, SparseRows):
        order = rows.features.argsort(stable=True)
        counts = rows.features.bincount(minlength=rows.num_features).tolist()
        yield from zip(
            rows.rows()[order].split(counts), rows.values[order].double().split(counts), strict=True
        )
    else:
        for column in rows.T:
            (present,) = (~column.isnan()).nonzero(as_tuple=True)
            yield present, column[present].double()


class DenseBins:
    """A bin of every row and feature, column after column."""

    def __init__(self, rows_NF: Tensor, edges_FE: Tensor) -> None:
        self.num_rows, self.num_bins = len(rows_NF), edges_FE.shape[1] + 1
        dtype = torch.uint8 if self.num_bins < 256 else torch.int16
        self.bins_FN = torch.full((len(edges_FE), self.num_rows), self.num_bins, dtype=dtype)
        for bins, (present, values), edges in zip(self.bins_FN, columns_of(rows_NF), edges_FE):
            bins[present] = torch.searchsorted(edges, values, right=True).to(dtype)

    def entries(self, chosen_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each feature rows and their bins, for rows that are chosen, (N,) bool."""
        (rows,) = chosen_N.nonzero(as_tuple=True)
        for bins in self.bins_FN:
            yield rows, bins[rows]

    def goes_left(self, splits: Splits, node_N: Tensor) -> Tensor:
        """Return which rows go left at the split of their node, (N,) bool."""
        bins_N = self.bins_FN[splits.feature[node_N], torch.arange(self.num_rows)]
        below = bins_N <= splits.bin[node_N]
        return torch.where(bins_N == self.num_bins, splits.default_left[node_N], below)


class ColumnBlocks:
    """For each feature, the rows that have a value, and their bins."""

    def __init__(self, rows: Rows, edges_FE: Tensor) -> None:
        self.num_rows, self.num_bins = len(rows), edges_FE.shape[1] + 1
        self.blocks = [
            (present, torch.searchsorted(edges, values, right=True).to(torch.int16))
            for (present, values), edges in zip(columns_of(rows), edges_FE)
        ]

    def entries(self, chosen_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each feature rows and their bins, for rows that are chosen, (N,) bool."""
        for rows, bins in self.blocks:
            chosen = chosen_N[rows]
            yield rows[chosen], bins[chosen]

    def goes_left(self, splits: Splits, node_N: Tensor) -> Tensor:
        """Return which rows go left at the split of their node, (N,) bool."""
        left_N = splits.default_left[node_N]
        for feature in splits.feature.unique().tolist():
            rows, bins = self.blocks[feature]
            here = splits.feature[node_N[rows]] == feature
            rows, bins = rows[here], bins[here]
            left_N[rows] = bins <= splits.bin[node_N[rows]]
        return left_N


def binned(rows: Rows, edges_FE: Tensor) -> DenseBins | ColumnBlocks:
    """Return the bins of rows: of a matrix dense, of sparse rows in column blocks."""
    kind = ColumnBlocks if isinstance(rows, SparseRows) else DenseBins
    return kind(rows, edges_FE)  # type: ignore[arg-type]
