"""All mistakes in splitting attention by heads; here those that leave heads in pieces."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.grade.graders.heads_kv_theories import of_keys
from labkit.grade.graders.heads_layouts import Given
from labkit.grade.graders.heads_shares import kv_heads, of_heads, query_heads
from labkit.grade.graders.heads_theories import Mistake, Shares, of_dims, of_order

_ALL_OVER = (
    "takes a head's rows from all over the weight",
    "the rows of a head lie side by side, head by head: as (H, K), where (K, H) was taken",
)
_PIECES = (
    "cuts every head into pieces",
    "each rank has an n-th of the features of every head. Scores are sums over all K features of a "
    "head, and softmax comes after the sum: a rank has whole heads",
)
_NO_FEATURES = (
    "forgets the features of a head",
    "the rank has H/n rows instead of H/n K: a head is K rows",
)


def mistakes(given: Given) -> list[Mistake]:
    """In the order in which they are tried."""
    return [*of_dims(given), *of_keys(given), *of_order(given), *_of_pieces(given)]


def _of_pieces(given: Given) -> list[Mistake]:
    """Heads that are not whole."""
    layout = given.layout
    query, key, value, out = given.weights
    by_head = out.t().contiguous()

    def strided(rank: int) -> Shares:
        own, keys = query_heads(layout, rank), kv_heads(layout, rank)
        pairs = ((query, own), (key, keys), (value, keys), (by_head, own))
        *shares, columns = (_strided(x, heads, given.head_dim) for x, heads in pairs)
        return [*shares, columns.t()]

    def pieces(rank: int) -> Shares:
        *shares, columns = (_pieces(x, rank, given) for x in (query, key, value, by_head))
        return [*shares, columns.t()]

    def single_rows(rank: int) -> Shares:
        own, keys = query_heads(layout, rank), kv_heads(layout, rank)
        pairs = ((query, own), (key, keys), (value, keys), (by_head, own))
        *shares, columns = (of_heads(x, heads, 1) for x, heads in pairs)
        return [*shares, columns.t()]

    return [
        Mistake(*_ALL_OVER, strided),
        Mistake(*_PIECES, pieces, 1),
        Mistake(*_NO_FEATURES, single_rows),
    ]


def _strided(weight: Tensor, heads: Sequence[int], head_dim: int) -> Tensor:
    """As if the rows were (K, heads)."""
    return weight.unflatten(0, (head_dim, -1))[:, list(heads)].flatten(0, 1)


def _pieces(weight: Tensor, rank: int, given: Given) -> Tensor:
    """The r-th part of each head."""
    n = given.layout.num_ranks
    return torch.cat([head.tensor_split(n)[rank] for head in weight.split(given.head_dim)])
