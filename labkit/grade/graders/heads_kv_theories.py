"""Mistakes about the key-value heads of a rank: query and out are right, key and value are not."""

from collections.abc import Callable, Sequence

from labkit.grade.graders.heads_layouts import Given
from labkit.grade.graders.heads_shares import query_heads, read_by, right, shares_of
from labkit.grade.graders.heads_theories import Mistake, Shares

_CUT = (
    "cuts through key-value heads",
    "there are fewer key-value heads than ranks, and each rank has a part of one. Scores are sums "
    "over all K features of a head: whoever has a part, cannot take the softmax. The whole head is "
    "copied to each of the n/G ranks whose query heads read it",
)
_ROUND_ROBIN = (
    "deals key-value heads round robin",
    "query heads lie in blocks, and so do the key-value heads that they read: with rank r's at r, "
    "r + n, ... (or a number modulo G, where there are fewer than ranks) query heads read keys "
    "that are not theirs. All shapes are right, and the output is not",
)
_ALL = (
    "keeps all key-value heads on every rank",
    "a rank needs the key-value heads that its query heads read, and no other: all of them on "
    "every rank is the memory of a KV cache that is not split",
)
_REPEATED = (
    "repeats key-value heads for each query head",
    "several query heads of the rank read one key-value head, which the share has once. Repeated, "
    "it is several parameters, which gradients drive apart; and the KV cache is as large as "
    "without grouped queries",
)
_WRONG = (
    "gives query heads the wrong key-value head",
    "head h reads key-value head h // (H/G): H/G query heads side by side have one together. A "
    "rank gets what its own query heads read",
)
_KEY_TWICE = (
    "takes key for value",
    "key and value are split in the same way, and each is a weight of its own",
)


def of_keys(given: Given) -> list[Mistake]:
    """In the order in which they are tried."""
    n, of_ranks = given.layout.num_ranks, right(given)
    _, key, value, _ = given.weights
    cut = [each.tensor_split(n) for each in (key, value)]

    def with_keys(keys: Callable[[int], Sequence[int]]) -> Callable[[int], Shares]:
        return lambda rank: shares_of(given, query_heads(given.layout, rank), keys(rank))

    def with_parts(rank: int) -> Shares:
        return [of_ranks[rank][0], *(each[rank] for each in cut), of_ranks[rank][3]]

    return [
        Mistake(*_CUT, with_parts, 1),
        *(Mistake(*why, with_keys(keys)) for why, keys in _other_heads(given)),
        Mistake(*_KEY_TWICE, lambda rank: [of_ranks[rank][i] for i in (0, 1, 1, 3)], 3),
    ]


def _other_heads(
    given: Given,
) -> list[tuple[tuple[str, str], Callable[[int], Sequence[int]]]]:
    """Name and explanation, and the key-value heads that a rank would get."""
    layout = given.layout
    n, kv = layout.num_ranks, layout.num_kv_heads

    def own(rank: int) -> list[int]:
        return query_heads(layout, rank)

    return [
        (_ROUND_ROBIN, lambda rank: range(rank, kv, n) if n <= kv else [rank % kv]),
        (_ROUND_ROBIN, lambda rank: _one(given, rank, own(rank)[0] % kv)),
        (_ALL, lambda rank: range(kv)),
        (_REPEATED, lambda rank: read_by(layout, own(rank))),
        (_WRONG, lambda rank: sorted({head % kv for head in own(rank)})),
        # Where a rank has one, by another formula; right for several.
        (_WRONG, lambda rank: _one(given, rank, own(rank)[0] // kv)),
        (_WRONG, lambda rank: _one(given, rank, rank // kv)),
        (_WRONG, lambda rank: _one(given, rank, rank)),
    ]


def _one(given: Given, rank: int, head: int) -> list[int]:
    """This head, where ranks have copies; else what the rank reads."""
    layout = given.layout
    if layout.num_ranks > layout.num_kv_heads:
        return [head]
    return sorted(set(read_by(layout, query_heads(layout, rank))))
