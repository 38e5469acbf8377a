"""Train gradient-boosted trees on row shards: each tree fits the gradients of the trees before.

    once        edges_FE over all ranks (sketch.py); each rank turns its rows into bins
    a tree      g, h of each row                                              local
                units of g and h                                              3 numbers
      a level   sums_FMB2 of new nodes, merged over the ranks (histogram.py)  16 F M B bytes
                the best split of each node, agreed (split.py)                48 M bytes per rank
                rows go left or right                                         local
      leaves    w = -G / (H + lambda), times the learning rate                local

It equals one process that has all rows, tree by tree and bit by bit, for these reasons:

    edges       the same on every rank; give `edges` to have those of another training
    sums        whole numbers, so that order and place of the rows do not matter (histogram.py)
    splits      computed alike from the same sums; ties go to the lowest feature (split.py)
    gradients   each from its own row alone, in every bit: see _sigmoid

Edges that ranks sketch themselves depend on the shards, within the error of the sketch. Then trees
may differ between two numbers of ranks, as those of libraries do (XGBoost's issues 1150 and 5977).
With exact=False sums are floating-point numbers, as in most libraries.

A rank may have any number of rows, also none. It takes part in every collective all the same.

Layout: rows, gradients and the node of each row are sharded; edges and trees are replicated.
Wire: 2(n-1)/n or (n-1)/n of a level's sums per rank; labkit.calc.boosting_level_bytes has the sum.
Paper: Chen and Guestrin, "XGBoost: a scalable tree boosting system", arXiv:1603.02754.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.trees.bins import (
    ColumnBlocks,
    DenseBins,
    Rows,
    SparseRows,
    Splits,
    binned,
    columns_of,
)
from labkit.trees.histogram import MERGES, FixedPoint, Merged, local_sums
from labkit.trees.sketch import shared_edges
from labkit.trees.split import Best, Penalty, agreed, best_of_own
from labkit.trees.tree import Booster, Tree

LOSSES = ("squared_error", "logistic")
SKETCHES = ("once", "each_tree")


@dataclass(frozen=True, kw_only=True)
class BoostingConfig:
    """Settings of training, with XGBoost's defaults. ValueError for a value that trains nothing."""

    loss: str = "squared_error"  # or "logistic", for labels from 0 to 1
    num_trees: int = 20
    learning_rate: float = 0.3
    max_depth: int = 6
    lam: float = 1.0  # lambda: pulls leaves towards 0
    gamma: float = 0.0  # a split must gain more
    min_child_weight: float = 1.0  # the least sum of h in a child
    num_bins: int = 256
    sketch_size: int = 2048  # entries of a summary
    sketch: str = "once"  # as XGBoost's hist; "each_tree", weighted by h, as its approx
    merge: str = "reduce_scatter"  # or "all_reduce"
    exact: bool = True  # sums of whole numbers

    def __post_init__(self) -> None:
        for name, known in (("loss", LOSSES), ("sketch", SKETCHES), ("merge", MERGES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: give one of {', '.join(known)}")
        arguments.whole("num_trees", self.num_trees, "1 or more")
        arguments.whole("max_depth", self.max_depth, "1 to 16; 6 is usual", most=16)
        arguments.whole("num_bins", self.num_bins, "2 to 32,766", least=2, most=32_766)
        arguments.whole("sketch_size", self.sketch_size, "2 or more", least=2)
        arguments.number("learning_rate", self.learning_rate, "above 0; 0.3 is usual", above=0)
        for name in ("lam", "gamma", "min_child_weight"):
            arguments.number(name, getattr(self, name), "0 or more", least=0)

    @property
    def penalty(self) -> Penalty:
        """Return the settings that enter the gain of a split."""
        return Penalty(self.lam, self.gamma, self.min_child_weight)


def train(
    world: Group,
    rows: Rows,
    labels_N: Tensor,
    config: BoostingConfig,
    edges_FE: Tensor | None = None,
) -> Booster:
    """Train on the rows of all ranks; return the same trees on every rank.

    rows: this rank's, (N, F) float with nan for missing values, or SparseRows; N may be 0.
    labels_N: (N,). edges_FE: edges between bins, such as booster.edges_FE; None: sketched.
    ValueError for infinite values, and for labels that the loss does not have.
    """
    labels_N = _checked(rows, labels_N, config)
    base = _base(labels_N, config, world)
    margin_N = torch.full_like(labels_N, base)
    bins, booster = None, Booster(torch.empty(0), base)
    for _ in range(config.num_trees):
        pairs_N2 = gradients(margin_N, labels_N, config.loss)
        if bins is None or config.sketch == "each_tree":
            weights_N = (
                pairs_N2[:, 1] if config.sketch == "each_tree" else torch.ones_like(margin_N)
            )
            booster.edges_FE = _edges(rows, weights_N, config, world, edges_FE)
            bins = binned(rows, booster.edges_FE)
        tree, leaf_N = grow(bins, booster.edges_FE, pairs_N2, config, world)
        margin_N += tree.value[leaf_N]
        booster.trees.append(tree)
    return booster


def grow(
    bins: DenseBins | ColumnBlocks,
    edges_FE: Tensor,
    pairs_N2: Tensor,
    config: BoostingConfig,
    world: Group,
) -> tuple[Tree, Tensor]:
    """Grow one tree level by level; return it, and the leaf of each of this rank's rows."""
    merged = Merged(config.merge, len(edges_FE), world)
    if config.exact:
        fixed_point = FixedPoint.of(pairs_N2, world)
        pairs_N2 = fixed_point.round(pairs_N2)

    def over_ranks(sums: Tensor, add: Callable[[Tensor], Tensor]) -> Tensor:
        if not config.exact:
            return add(sums)
        return add(sums.long()) * fixed_point.units_2

    def sums_of(slot_N: Tensor, num_slots: int) -> Tensor:
        return over_ranks(local_sums(bins, slot_N, num_slots, pairs_N2), merged.sum)

    totals_M2 = over_ranks(pairs_N2.sum(0, keepdim=True), world.all_reduce)
    node_N = torch.zeros(bins.num_rows, dtype=torch.int64)  # among those of the level; -1: done
    sums_FMB2 = sums_of(node_N, 1)
    leaf_N, num_nodes, levels = node_N, 0, []
    for depth in range(config.max_depth + 1):
        num_nodes += len(totals_M2)
        best = _no_split(totals_M2)
        if depth < config.max_depth:
            own = best_of_own(sums_FMB2, totals_M2, merged.first, config.penalty)
            best = agreed(own, merged)
        (split,) = (best.gains > 0).nonzero(as_tuple=True)
        pair_M = torch.full((len(totals_M2),), -1)  # the number of the children's pair
        pair_M[split] = torch.arange(len(split))
        levels.append(_nodes(best, pair_M, num_nodes, totals_M2, edges_FE, config))
        if not len(split):
            break
        right_N = ~bins.goes_left(best.splits, node_N.clamp(min=0))
        pair_N = torch.where(node_N >= 0, pair_M[node_N], -1)
        node_N = torch.where(pair_N >= 0, 2 * pair_N + right_N.long(), -1)
        leaf_N = torch.where(node_N >= 0, num_nodes + node_N, leaf_N)

        left_M2 = best.left_M2[split]
        both_M22 = torch.stack([left_M2, totals_M2[split] - left_M2], dim=1)
        totals_M2 = both_M22.flatten(0, 1)
        if depth + 1 < config.max_depth:
            smaller_M = (both_M22[:, 1, 1] < both_M22[:, 0, 1]).long()  # 1: the right child
            is_smaller_N = (node_N >= 0) & (right_N == smaller_M[pair_N])
            built = sums_of(torch.where(is_smaller_N, pair_N, -1), len(split))
            sibling = sums_FMB2[:, split] - built
            sums_FMB2 = sibling.repeat_interleave(2, dim=1)
            sums_FMB2[:, 2 * torch.arange(len(split)) + smaller_M] = built
    return Tree(*map(torch.cat, zip(*levels, strict=True))), leaf_N


def _no_split(totals_M2: Tensor) -> Best:
    """Return the splits of a level whose nodes are all leaves."""
    none = torch.zeros(len(totals_M2), dtype=torch.int64)
    return Best(none - torch.inf, Splits(none, none, none > 0), totals_M2)


def _nodes(
    best: Best,
    pair_M: Tensor,
    first_child: int,
    totals_M2: Tensor,
    edges_FE: Tensor,
    config: BoostingConfig,
) -> Tree:
    """Return a level's nodes as the arrays of a tree."""
    is_split = pair_M >= 0
    feature, bin_, default_left = best.splits
    edges = F.pad(edges_FE, (0, 1), value=torch.inf)  # after the last bin: present or missing
    g, h = totals_M2.unbind(1)
    value = torch.where(h + config.lam > 0, -g / (h + config.lam), 0.0) * config.learning_rate
    return Tree(
        torch.where(is_split, feature, 0),
        torch.where(is_split, edges[feature, bin_], 0.0),
        default_left & is_split,
        torch.where(is_split, first_child + 2 * pair_M, 0),
        torch.where(is_split, 0.0, value),
    )


def gradients(margin_N: Tensor, labels_N: Tensor, loss: str) -> Tensor:
    """Return the first and second derivative of each row's loss by its margin, (N, 2) float64."""
    if loss == "squared_error":  # (margin - label)^2 / 2
        return torch.stack([margin_N - labels_N, torch.ones_like(labels_N)], dim=1)
    p_N = _sigmoid(margin_N)
    return torch.stack([p_N - labels_N, p_N * (1 - p_N)], dim=1)


def _sigmoid(x_N: Tensor) -> Tensor:
    """Return the sigmoid of each number, the same wherever the number stands.

    torch computes a tensor's last numbers, fewer than a vector has, by another program than the
    rest, and the results may differ in the last bit. A row must not get another gradient because
    its shard ends there. So the tensor ends with numbers that nobody needs.
    """
    return torch.sigmoid(F.pad(x_N, (0, -len(x_N) % 64 + 64)))[: len(x_N)]


def _base(labels_N: Tensor, config: BoostingConfig, world: Group) -> float:
    """Return the margin of the mean label of all ranks. Wire: a few numbers."""
    pairs_N2 = torch.stack([labels_N, torch.ones_like(labels_N)], dim=1)
    fixed_point = FixedPoint.of(pairs_N2, world)
    sums_2 = world.all_reduce(fixed_point.round(pairs_N2).sum(0)) * fixed_point.units_2
    if not sums_2[1]:
        raise ValueError("no rank has a row: there is nothing to train on")
    mean = (sums_2[0] / sums_2[1]).item()
    if config.loss == "squared_error":
        return mean
    mean = min(max(mean, 1e-6), 1 - 1e-6)
    return math.log(mean / (1 - mean))


def _edges(
    rows: Rows, weights_N: Tensor, config: BoostingConfig, world: Group, given: Tensor | None
) -> Tensor:
    """Return the edges between bins, those that are given or new ones."""
    if given is not None:
        return given
    columns = ((values, weights_N[present]) for present, values in columns_of(rows))
    return shared_edges(columns, config.num_bins, config.sketch_size, world)


def _checked(rows: Rows, labels_N: Tensor, config: BoostingConfig) -> Tensor:
    """Return the labels in float64. ValueError for rows or labels that cannot be trained on."""
    values = rows.values if isinstance(rows, SparseRows) else rows
    if values.isinf().any():
        raise ValueError("rows have infinite values: clip them, or make them nan, which is missing")
    if labels_N.shape != (len(rows),):
        raise ValueError(
            f"labels have the shape {tuple(labels_N.shape)}: give {len(rows)}, one a row"
        )
    labels_N = labels_N.double()
    if not labels_N.isfinite().all():
        raise ValueError("labels have nan or inf: leave these rows out")
    if config.loss == "logistic" and ((labels_N < 0) | (labels_N > 1)).any():
        raise ValueError(
            f"labels go from {labels_N.min():g} to {labels_N.max():g}: logistic loss needs 0 to 1"
        )
    return labels_N
