"""Find bin edges over all ranks with weighted quantile summaries that can be merged and pruned.

A feature has 256 bins with about the same weight in each. Their edges are quantiles of the values
on all ranks, and no rank holds these. A summary holds some of the values, sorted, with bounds on
the weight that lies below each:

    value    low     high    weight       low: at least so much weight lies below the value
      0.3      0      2.0       2.0       high: at most so much lies at the value or below it
      0.9    4.5      7.0       1.5       weight: at least so much lies at the value itself
      1.4    7.0      9.0       1.0       Between 0.3 and 0.9 lie rows that are not listed.

    merge    bounds add: the error, as a share of the weight, is at most that of the worse one
    prune    keep the entries nearest to `size - 1` equal steps: adds 1/(size - 1) to the error

A rank sorts its rows, which is exact, and prunes. So merging the n summaries of all ranks has an
error of at most 1/(size - 1) of all weight, whatever n is and however rows are spread over ranks.

In second-order boosting a row's weight is its second derivative h. The loss of a node is
sum h (w - (-g/h))^2 / 2, up to a constant: a least-squares problem whose rows have weight h.

Layout: all ranks end with the same edges, since all merge the same summaries in rank order.
Wire: (n - 1) summaries of `size` entries, four float64 each, per feature; and one number before.
Papers: Chen and Guestrin, "XGBoost", arXiv:1603.02754, appendix; Greenwald and Khanna,
"Space-efficient online computation of quantile summaries", SIGMOD 2001.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.comm import Group


class Summary(NamedTuple):
    """Sorted values of a weighted set with bounds on their ranks, each (S,) float64."""

    values: Tensor
    low: Tensor
    high: Tensor
    weights: Tensor

    @property
    def total(self) -> float:
        """Weight of the whole set, 0 if it is empty."""
        return self.high[-1].item() if len(self.high) else 0.0

    def error(self) -> float:
        """Return the largest uncertainty of a rank, in units of weight: 0 where nothing is
        pruned."""
        if not len(self.values):
            return 0.0
        within = self.high - self.low - self.weights
        gaps = (self.high - self.weights)[1:] - (self.low + self.weights)[:-1]
        return torch.cat([within, gaps]).max().clamp(min=0).item()


def summarize(values_N: Tensor, weights_N: Tensor) -> Summary:
    """Return the exact summary of values without nan and their weights, both (N,).

    Equal values become one entry.
    """
    order = values_N.argsort(stable=True)
    values, places = torch.unique_consecutive(values_N[order].double(), return_inverse=True)
    weights = torch.zeros(len(values), dtype=torch.float64)
    weights.index_add_(0, places, weights_N[order].double())
    high = weights.cumsum(0)
    return Summary(values, high - weights, high, weights)


def merge(one: Summary, other: Summary) -> Summary:
    """Return the summary of both sets together. Its error is at most the sum of both errors."""
    values = torch.cat([one.values, other.values]).unique()
    bounds = (_extended(each, values) for each in (one, other))
    return Summary(values, *(ours + theirs for ours, theirs in zip(*bounds, strict=True)))


def _extended(summary: Summary, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return bounds and weights of a summary at other values, which include its own.

    Between two entries a value has at least the weight through the lower entry below it, and at
    most the weight before the higher entry.
    """
    zero = torch.zeros(1, dtype=torch.float64)
    total = torch.tensor([summary.total], dtype=torch.float64)
    place = torch.searchsorted(summary.values, values)  # the first entry at or above
    listed = torch.searchsorted(summary.values, values, right=True) > place
    low_between = torch.cat([zero, summary.low + summary.weights])[place]
    high_between = torch.cat([summary.high - summary.weights, total])[place]
    low, high, weights = (
        torch.cat([own, zero])[place] for own in (summary.low, summary.high, summary.weights)
    )
    return (
        torch.where(listed, low, low_between),
        torch.where(listed, high, high_between),
        torch.where(listed, weights, 0.0),
    )


def query(summary: Summary, ranks: Tensor) -> Tensor:
    """Return the place in the summary of the entry nearest to each rank, (len(ranks),).

    ranks: weights below the wanted value, 0 to the total. The entry found is off by at most half of
    error(), and by its own weight.
    """
    middle = (summary.low + summary.high) / 2
    right = torch.searchsorted(middle, ranks, right=True).clamp(1, max(len(middle) - 1, 1))
    left = right - 1
    right = right.clamp(max=len(middle) - 1)  # the only entry
    limit = (summary.low + summary.weights)[left] + (summary.high - summary.weights)[right]
    return torch.where(2 * ranks < limit, left, right)


def prune(summary: Summary, size: int) -> Summary:
    """Return at most `size` entries, the first and the last among them.

    Adds at most total / (size - 1) to the error.
    """
    if len(summary.values) <= size:
        return summary
    ranks = torch.linspace(0, summary.total, size, dtype=torch.float64)
    places = query(summary, ranks)
    places[0], places[-1] = 0, len(summary.values) - 1
    places = places.unique()
    return Summary(*(each[places] for each in summary))


def edges_of(summary: Summary, num_bins: int) -> Tensor:
    """Return the edges between bins, (num_bins - 1,) float64, ascending, then inf.

    Bin k holds edges[k - 1] <= x < edges[k]. At most num_bins different values get a bin each.
    Edges that several quantiles share are listed once; the inf at the end are edges of empty bins.
    """
    if len(summary.values) <= num_bins:
        edges = summary.values[1:]
    else:
        shares = torch.arange(1, num_bins, dtype=torch.float64) / num_bins
        places = query(summary, shares * summary.total).unique()
        edges = summary.values[places[places > 0]]  # below the least value lies nothing
    return torch.cat([edges, edges.new_full((num_bins - 1 - len(edges),), torch.inf)])


def shared_edges(
    columns: Iterable[tuple[Tensor, Tensor]], num_bins: int, size: int, group: Group
) -> Tensor:
    """Return the edges of all features over all ranks, (F, num_bins - 1), the same on every rank.

    columns: for each feature this rank's values and weights, which may be none. size: entries of a
    summary. Wire: see above; summaries are padded to the longest of any rank.
    """
    own = [prune(summarize(*column), size) for column in columns]
    longest = torch.tensor([max((len(each.values) for each in own), default=0)])
    length = int(group.all_reduce(longest, "max"))
    padded_F4S = torch.stack([_padded(each, length) for each in own])
    edges = []
    for of_ranks in group.all_gather(padded_F4S[None]).unbind(1):
        merged = Summary(*torch.zeros(4, 0, dtype=torch.float64))
        for entries_4S in of_ranks:
            merged = merge(merged, Summary(*entries_4S[:, entries_4S[3] >= 0]))
        edges.append(edges_of(merged, num_bins))
    return torch.stack(edges)


def _padded(summary: Summary, length: int) -> Tensor:
    """Return (4, length): entries of weight -1 at the end are none."""
    entries = torch.stack(list(summary))
    return torch.nn.functional.pad(entries, (0, length - entries.shape[1]), value=-1.0)
