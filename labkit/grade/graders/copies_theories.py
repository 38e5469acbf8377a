"""Wrong ideas of which ranks hold copies of a key-value head."""

from labkit.grade.by_theory import Theory
from labkit.grade.graders.heads_layouts import Holder
from labkit.grade.graders.heads_shares import copies


def _same(holder: Holder, divisor: int) -> list[int]:
    ranks = range(holder.num_ranks)
    return [other for other in ranks if other // divisor == holder.rank // divisor]


def _every(holder: Holder, step: int) -> list[int]:
    return [other for other in range(holder.num_ranks) if other % step == holder.rank % step]


def _has_copies(holder: Holder) -> bool:
    return holder.num_ranks > holder.num_kv_heads


_BLOCKS = (
    "takes blocks of G ranks",
    "G is how many heads there are, and n/G how many ranks have each of them: blocks of n/G ranks",
)
_ALL = (
    "takes all ranks for copies",
    "with G key-value heads there are G different shares, each on n/G ranks: gradients of "
    "different heads must not be added up",
)

THEORIES: tuple[Theory[Holder], ...] = (
    Theory(
        "finds no copies",
        "with more ranks than key-value heads, n/G ranks have the same one. Each sees only the "
        "gradient that its own query heads cause: without the sum the copies drift apart",
        lambda holder: [holder.rank],
        1,
    ),
    Theory(
        "takes every G-th rank for a copy",
        "query heads of one key-value head lie side by side, and so do the ranks that have them: "
        "rank r has head r G // n, and not r % G",
        lambda holder: _every(holder, holder.num_kv_heads),
    ),
    Theory(
        "takes every (n/G)-th rank for a copy",
        "ranks side by side have the same head; those n/G apart have different ones",
        lambda holder: (
            _every(holder, holder.num_ranks // holder.num_kv_heads)
            if _has_copies(holder)
            else [holder.rank]
        ),
    ),
    Theory(*_BLOCKS, lambda holder: _same(holder, holder.num_kv_heads)),
    Theory(
        *_BLOCKS,
        lambda holder: _same(holder, holder.num_kv_heads) if _has_copies(holder) else [holder.rank],
    ),
    Theory(*_ALL, lambda holder: list(range(holder.num_ranks))),
    Theory(
        *_ALL,
        lambda holder: list(range(holder.num_ranks)) if _has_copies(holder) else [holder.rank],
    ),
    Theory(
        "leaves the rank itself out",
        "its own gradient is one of those to add up; a group for the sum has it as a member",
        lambda holder: [other for other in copies(holder) if other != holder.rank],
        3,
    ),
    Theory(
        "gives every rank the copies of rank 0",
        "rank r's block begins at r - r % (n/G)",
        lambda holder: list(range(len(copies(holder)))),
        3,
    ),
)
