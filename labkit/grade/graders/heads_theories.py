"""Mistakes in splitting attention by heads, by the shares that ranks then get: dims and order."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from labkit.grade.graders.heads_layouts import Given
from labkit.grade.graders.heads_shares import kv_heads, read_by, right, shares_of

Shares = list[Tensor]


@dataclass(frozen=True)
class Mistake:
    """A name for it, and the shares of a rank in the order of WEIGHTS."""

    name: str
    explanation: str
    shares: Callable[[int], Shares]
    hint: int = 2


_BY_ROWS = (
    "splits out along the wrong dim",
    "out is (D, H K), and a head's features are its columns: they meet the rows of query, so a "
    "rank has the columns of its heads and computes a partial result of all D. With rows of out it "
    "would need the features of all heads",
)
_BY_COLUMNS = (
    "splits the projections along the wrong dim",
    "query, key and value have x's D features in their columns, and heads in their rows: a rank "
    "has whole rows of its heads, and sees all of x. Split by columns they give partial sums of "
    "all heads, which softmax has no use for",
)
_TRANSPOSED = (
    "returns out transposed",
    "out's share is (D, H/n K), as out itself is (D, H K); it is (H/n K, D) here",
)
_ALL_OF_OUT = (
    "does not split out",
    "out's share has all columns: a rank's heads have H/n K features, and these meet as many "
    "columns",
)
_ALL_OF_ALL = ("returns the whole weights", "every rank gets everything, and nothing is split")


def of_dims(given: Given) -> list[Mistake]:
    """Along the wrong dim, or not at all."""
    n, of_ranks = given.layout.num_ranks, right(given)
    *projections, out = given.weights
    columns = [each.tensor_split(n, dim=1) for each in projections]
    rows = out.tensor_split(n)
    return [
        Mistake(*_BY_ROWS, lambda rank: [*of_ranks[rank][:3], rows[rank]], 1),
        Mistake(*_BY_COLUMNS, lambda rank: [*(x[rank] for x in columns), rows[rank]], 1),
        Mistake(*_BY_COLUMNS, lambda rank: [*(x[rank] for x in columns), of_ranks[rank][3]], 1),
        Mistake(*_TRANSPOSED, lambda rank: [*of_ranks[rank][:3], of_ranks[rank][3].t()], 3),
        Mistake(*_ALL_OF_OUT, lambda rank: [*of_ranks[rank][:3], out]),
        Mistake(*_ALL_OF_ALL, lambda rank: given.weights, 1),
    ]


_ROUND_ROBIN = (
    "deals query heads round robin",
    "rank r has the heads r, r + n, ...; the contract is blocks of heads side by side. These read "
    "the same key-value heads, or neighbours: round robin a rank needs nearly all of them",
)
_OTHER_COLUMNS = (
    "gives a rank the columns of other heads",
    "query, key and value are right, and the columns of out are those of other heads than the "
    "rank's: its heads' features would go where other heads' belong",
)


def of_order(given: Given) -> list[Mistake]:
    """Right blocks on other ranks, and heads that are dealt out."""
    layout, of_ranks = given.layout, right(given)
    n, kv = layout.num_ranks, layout.num_kv_heads
    found = [
        Mistake(
            "gives ranks each other's shares",
            f"rank r has the share of rank (r + {shift}) % {n}: blocks go to ranks in order",
            lambda rank, shift=shift: of_ranks[(rank + shift) % n],  # type: ignore[misc]
            3,
        )
        for shift in range(1, n)
    ]
    dealt = [list(range(rank, layout.num_heads, n)) for rank in range(n)]
    keys_with_them: list[Callable[[int], list[int]]] = [
        lambda rank: kv_heads(layout, rank),
        lambda rank: sorted(set(read_by(layout, dealt[rank]))),
        lambda rank: list(range(rank, kv, n)) or [rank % kv],
    ]

    def with_keys(keys: Callable[[int], list[int]]) -> Callable[[int], Shares]:
        return lambda rank: shares_of(given, dealt[rank], keys(rank))

    def mixed(rank: int) -> Shares:
        return [*of_ranks[rank][:3], shares_of(given, dealt[rank], [])[3]]

    found += [Mistake(*_ROUND_ROBIN, with_keys(keys)) for keys in keys_with_them]
    return [*found, Mistake(*_OTHER_COLUMNS, mixed)]
