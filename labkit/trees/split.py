"""Find the best split of each node from its sums, and agree on it over the ranks.

A leaf's rows have the loss G w + (H + lambda) w^2 / 2, with G and H the sums of g and h over them.
Its least value is at the weight w = -G / (H + lambda). A split into left and right gains

    gain = [ GL^2 / (HL + lambda) + GR^2 / (HR + lambda) - G^2 / (H + lambda) ] / 2 - gamma

GL and HL of all splits of a feature come from one cumulative sum over its bins. Missing values are
not in the bins: their sums are those of the node less those of all bins. Each split is tried with
them on the left and on the right, and the better side becomes the default direction. The split
after the last bin separates present from missing values.

    bins       b0    b1    b2    | missing            split after b0:
    G           3    -1     4    |    2               missing right:  GL = 3      GR = 5
                                                      missing left:   GL = 3 + 2  GR = 3

Of equal gains the lowest feature wins, then the lowest bin, then missing values on the left.

Agreement. After an all-reduce every rank has all sums and finds the same split. After a
reduce-scatter each rank finds the best of its own features. An all-gather brings one candidate per
node and rank, and every rank chooses the first of the largest gains, which is again the lowest
feature. Both ways compute the same from the same numbers, so they choose the same splits.

Wire: (n - 1) candidates of 6 float64 per node after a reduce-scatter, none after an all-reduce.
XGBoost's program leaves out the division by 2, so its gamma is twice that of its paper and of ours.
Paper: Chen and Guestrin, "XGBoost", arXiv:1603.02754, sections 2.2 and 3.4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.trees.bins import Splits
from labkit.trees.histogram import Merged


class Penalty(NamedTuple):
    """Settings of the gain."""

    lam: float
    gamma: float
    min_child_weight: float


class Best(NamedTuple):
    """The best split of each of M nodes."""

    gains: Tensor
    """(M,) float64; -inf: the node has no split."""
    splits: Splits
    left_M2: Tensor
    """G and H of the left child, (M, 2)."""


def score(sums_2: Tensor, lam: float) -> Tensor:
    """Return G^2 / (H + lambda) of sums (..., 2); 0 where H + lambda is 0."""
    g, h = sums_2.unbind(-1)
    return torch.where(h + lam > 0, g * g / (h + lam), 0.0)


def best_of_own(sums_FMB2: Tensor, totals_M2: Tensor, first: int, penalty: Penalty) -> Best:
    """Return the best splits among the features that this rank has sums of.

    sums_FMB2: of the present values, totals_M2: of the nodes, both float64. first: the number of
    the first feature.
    """
    num_nodes, num_bins = sums_FMB2.shape[1:3]
    through = sums_FMB2.cumsum(2)
    missing = totals_M2[:, None] - through[:, :, -1:]
    left = torch.stack([through + missing, through], dim=3)  # (F, M, B, default, 2)
    right = totals_M2[:, None, None] - left
    gains = score(left, penalty.lam) + score(right, penalty.lam)
    before = score(totals_M2, penalty.lam)[:, None, None]
    gains = (gains - before) / 2 - penalty.gamma
    least = max(penalty.min_child_weight, torch.finfo(torch.float64).tiny)
    allowed = torch.minimum(left[..., 1], right[..., 1]) >= least
    gains = torch.where(allowed, gains, -torch.inf).transpose(0, 1).reshape(num_nodes, -1)
    place = gains.argmax(1)  # the first of the largest
    feature, rest = place // (2 * num_bins), place % (2 * num_bins)
    bin_, is_right = rest // 2, rest % 2
    nodes = torch.arange(num_nodes)
    return Best(
        gains[nodes, place],
        Splits(feature + first, bin_, is_right == 0),
        left[feature, nodes, bin_, is_right],
    )


def agreed(own: Best, merged: Merged) -> Best:
    """Return the best splits over all ranks, the same on every rank."""
    if not merged.by_feature:
        return own
    candidates = [own.gains, *own.splits, *own.left_M2.unbind(1)]
    mine_M6 = torch.stack([each.double() for each in candidates], dim=1)
    all_nM6 = merged.group.all_gather(mine_M6[None])
    # Features that only pad the last rank have no rows on either side, and so no gain.
    winner = all_nM6[:, :, 0].argmax(0)  # the first of the largest: the lowest feature
    chosen_M6 = all_nM6[winner, torch.arange(len(winner))]
    feature, bin_ = chosen_M6[:, 1:3].long().unbind(1)
    return Best(chosen_M6[:, 0], Splits(feature, bin_, chosen_M6[:, 3] == 1), chosen_M6[:, 4:])
