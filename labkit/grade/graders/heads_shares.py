"""A rank's share of attention's weights, from the heads that it has; and copies of such heads."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from labkit.grade.graders.heads_layouts import Given, Holder, Layout


def query_heads(layout: Layout, rank: int) -> list[int]:
    """The r-th of n blocks."""
    num_own = layout.num_heads // layout.num_ranks
    return list(range(rank * num_own, (rank + 1) * num_own))


def kv_heads(layout: Layout, rank: int) -> list[int]:
    """What its query heads read, each once."""
    return sorted(set(read_by(layout, query_heads(layout, rank))))


def read_by(layout: Layout, heads: Iterable[int]) -> list[int]:
    """The key-value head of each query head."""
    return [head * layout.num_kv_heads // layout.num_heads for head in heads]


def of_heads(weight: Tensor, heads: Sequence[int], head_dim: int) -> Tensor:
    """The rows of these heads; none for a head that there is not."""
    rows = [weight[head * head_dim : (head + 1) * head_dim] for head in heads]
    return torch.cat([weight[:0], *rows])


def shares_of(given: Given, queries: Sequence[int], keys: Sequence[int]) -> list[Tensor]:
    """The four shares of a rank with these heads."""
    query, key, value, out = given.weights
    return [
        of_heads(query, queries, given.head_dim),
        of_heads(key, keys, given.head_dim),
        of_heads(value, keys, given.head_dim),
        of_heads(out.t(), queries, given.head_dim).t(),
    ]


def right(given: Given) -> list[list[Tensor]]:
    """By rank, in the order of WEIGHTS."""
    layout = given.layout
    return [
        shares_of(given, query_heads(layout, rank), kv_heads(layout, rank))
        for rank in range(layout.num_ranks)
    ]


def copies(holder: Holder) -> list[int]:
    """Ranks with the same key-value heads, the rank itself among them."""
    return [other for other in range(holder.num_ranks) if _block(holder, other) == _own(holder)]


def _own(holder: Holder) -> int:
    return _block(holder, holder.rank)


def _block(holder: Holder, rank: int) -> int:
    """The head that it has a copy of; its own number where all have different ones."""
    if holder.num_ranks <= holder.num_kv_heads:
        return rank
    return rank * holder.num_kv_heads // holder.num_ranks
