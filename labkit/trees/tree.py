"""Trees as arrays, and the sum of them that predicts.

    node       0       1      2       3      4              x[2] < 7.5 ?
    feature    2       0      -       -      -             /            \\
    threshold  7.5     0.5    -       -      -        x[0] < 0.5 ?       leaf 2
    left       1       3      0       0      0         /        \\
    value      -       -      0.4    -0.2    0.1     leaf 3     leaf 4

The children of node i are left[i] and left[i] + 1; left is 0 at a leaf. Nodes are numbered level by
level. A row whose value is missing goes where default_left says. All ranks hold all trees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.trees.bins import Rows, SparseRows


class Tree(NamedTuple):
    """One tree of P nodes; each array (P,)."""

    feature: Tensor
    threshold: Tensor
    """float64: rows below go left. inf: rows that have a value."""
    default_left: Tensor
    left: Tensor
    value: Tensor
    """float64: what a leaf adds to the margin, with the learning rate in it."""

    def leaves(self, rows_NF: Tensor) -> Tensor:
        """Return the leaf of each row, (N,); nan: missing."""
        node_N = torch.zeros(len(rows_NF), dtype=torch.int64)
        every = torch.arange(len(rows_NF))
        while (self.left[node_N] > 0).any():
            x_N = rows_NF[every, self.feature[node_N]].double()
            below = x_N < self.threshold[node_N]
            is_left = torch.where(x_N.isnan(), self.default_left[node_N], below)
            child_N = self.left[node_N] + (~is_left).long()
            node_N = torch.where(self.left[node_N] > 0, child_N, node_N)
        return node_N

    def level_sizes(self) -> list[int]:
        """Return the number of nodes on each level, from the root's 1."""
        sizes, level = [], torch.tensor([0])
        while len(level):
            sizes.append(len(level))
            left = self.left[level][self.left[level] > 0]
            level = torch.cat([left, left + 1])
        return sizes


@dataclass
class Booster:
    """The result of training: trees whose leaves add up to the margin of a row."""

    edges_FE: Tensor
    """The last edges between bins, which another training can start with."""
    base: float
    """The margin before the first tree."""
    trees: list[Tree] = field(default_factory=list)

    def margins(self, rows: Rows) -> Tensor:
        """Return base plus the value of each tree's leaf, (N,) float64.

        With squared error this is the prediction; with logistic loss its sigmoid is.
        """
        rows_NF = rows.dense() if isinstance(rows, SparseRows) else rows
        margin_N = torch.full((len(rows_NF),), self.base, dtype=torch.float64)
        for tree in self.trees:
            margin_N += tree.value[tree.leaves(rows_NF)]
        return margin_N

    def equal_trees(self, other: Booster) -> int:
        """Return how many trees are equal in every bit before the first that is not."""
        equal = [
            all(torch.equal(ours, theirs) for ours, theirs in zip(one, two, strict=True))
            for one, two in zip(self.trees, other.trees)
        ]
        return [*equal, False].index(False)
