"""Grade split_attention_heads: shards for drawn layouts, errors with the choices, and copies."""

import re
from collections.abc import Sequence
from typing import Any

import torch

from labkit.grade.grader import (
    Case,
    Draw,
    Mistake,
    Observed,
    Outcome,
    Patch,
    Questions,
    close,
    patch,
)

Tensor = torch.Tensor
WEIGHTS = ("query", "key", "value", "out")
SPLIT, COPIES = "split_attention_heads", "kv_copies"
HEAD_DIM = 48  # any number of ranks below divides it
LAYOUTS = [
    (2, 4, 4),
    (3, 6, 6),
    (2, 16, 8),
    (3, 12, 6),
    (1, 6, 2),
    (4, 8, 2),
    (6, 18, 3),
    (8, 8, 4),
]
LAYOUTS += [(4, 8, 1), (16, 32, 8), (5, 8, 2), (16, 8, 8), (6, 12, 4), (4, 12, 6)]
"""Ranks, query heads, key-value heads: one or several for each rank, copies, impossible ones."""
HOLDERS = [(4, 2), (16, 8), (6, 2), (12, 3), (4, 1), (2, 4), (3, 6), (4, 4), (1, 2), (8, 2)]
"""Ranks and key-value heads."""


def cases(draw: Draw) -> list[Case]:
    """The first rank of each layout, the last one, and another."""

    def weight(heads: int) -> Tensor:
        """Rows whose numbers begin with the number of their head."""
        head = torch.arange(heads).repeat_interleave(HEAD_DIM)
        return head[:, None] + draw.same(heads * HEAD_DIM, 12).frac().abs()

    def ranks(n: int) -> list[int]:
        return sorted({0, draw.rng.randrange(n), n - 1})

    asked = []
    for n, num_heads, num_kv in LAYOUTS:
        weights = weight(num_heads), weight(num_kv), weight(num_kv), weight(num_heads).t()
        label = f"{n} ranks, {num_heads} query heads, {num_kv} key-value heads, rank "
        asked += [
            Case(f"{label}{r}", *weights, n, r, num_heads, num_kv, function=SPLIT) for r in ranks(n)
        ]
    return asked + [
        Case(f"{n} ranks, {num_kv} key-value heads, rank {r}", n, r, num_kv, function=COPIES)
        for n, num_kv in HOLDERS + [(draw.rng.randrange(2, 5) * kv, kv) for kv in (3, 5, 7)]
        for r in ranks(n)
    ]


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """What the function returns, or the message of its ValueError."""
    if len(args) == 3:
        return watch.function(*args)
    try:
        return watch.function(*args)
    except ValueError as error:
        return f"ValueError: {error}"


def right(*args: Any) -> Any:
    """Head by head."""
    if len(args) == 3:
        n, rank, num_kv = args
        copies = [r for r in range(n) if r * num_kv // n == rank * num_kv // n]
        return copies if n > num_kv else [rank]
    n, _, num_heads, num_kv = args[4:]
    divisors = [i for i in range(1, num_heads + 1) if num_heads % i == 0]
    choices = [i for i in divisors if num_kv % i == 0 or i % num_kv == 0]
    return (
        shards(args, own(args), read_by(args, own(args)))
        if n in choices
        else f"ValueError: ... {choices}"
    )


def own(args: Sequence[Any]) -> list[int]:
    """The query heads of the rank."""
    n, rank, num_heads = args[4:7]
    return [head for head in range(num_heads) if head * n // num_heads == rank]


def read_by(args: Sequence[Any], heads: Sequence[int]) -> list[int]:
    """The key-value heads that these query heads read, each once."""
    return sorted({head * args[7] // args[6] for head in heads})


def rows(weight: Tensor, heads: Sequence[int]) -> Tensor:
    """The rows of these heads."""
    return weight.unflatten(0, (-1, HEAD_DIM))[list(heads)].flatten(0, 1)


def shards(args: Sequence[Any], queries: Sequence[int], keys: Sequence[int]) -> tuple[Tensor, ...]:
    """The shards of a rank with these heads."""
    query, key, value, out = args[:4]
    return rows(query, queries), rows(key, keys), rows(value, keys), rows(out.t(), queries).t()


def same(got: Any, expected: Any, case: Case) -> bool:
    """Tensors to the bit; of an error the numbers at its end."""
    if not isinstance(expected, str):
        return close(got, expected, case, steps=0)
    numbers, choices = (re.findall("[0-9]+", str(text)) for text in (got, expected))
    return isinstance(got, str) and numbers[-len(choices) :] == choices


def describe(s: Observed) -> str:
    """The heads of the first weight whose shard is wrong, or both answers."""
    for name, *shard in zip(WEIGHTS, s.y, s.right[0]) if s.case.function == SPLIT else ():
        if all(isinstance(x, Tensor) for x in shard) and not close(*shard, steps=0):
            heads = [sorted(set(x.int().flatten().tolist())) for x in shard]
            got, expected = (f"{tuple(x.shape)} of heads {i}" for x, i in zip(shard, heads))
            return f"{name}: got {got}, expected {expected}"
    got, expected = ("shards" if isinstance(x, tuple) else x for x in (s.y, s.right[0]))
    return f"got {got}, expected {expected}"


def are(s: Observed, queries: Sequence[int], *choices: Sequence[int]) -> bool:
    """Whether the shards are those of these query heads, and of one of these key-value heads."""
    return any(
        s.is_answer([shards(s.args, queries, keys)]) for keys in choices if max(keys) < s.args[7]
    )


def deals(s: Observed) -> bool:
    """Whether heads are dealt in turn: rank r has r, r + n, ..."""
    n, rank, num_heads, num_kv = s.args[4:]
    queries, mine = range(rank, num_heads, n), own(s.args)
    keys = range(rank, num_kv, n) or [rank % num_kv]
    both = read_by(s.args, queries), read_by(s.args, mine)
    return are(s, mine, keys) or are(s, queries, keys, *both)


def has_wrong_keys(s: Observed) -> bool:
    """Whether key-value heads are chosen by another formula than h // (H/G)."""
    _, rank, _, num_kv = s.args[4:]
    mine = own(s.args)
    by_first = [mine[0] % num_kv], [mine[0] // num_kv], [rank // num_kv], [rank % num_kv], [rank]
    by_all = sorted({h % num_kv for h in mine}), sorted({h // num_kv for h in mine})
    return are(s, mine, *by_first, *by_all)


def nths(s: Observed, dim: int, out_dim: int) -> tuple[Tensor, ...]:
    """An nth of every weight along a dimension, whatever a head is."""
    dims = (dim, dim, dim, out_dim)
    return tuple(x.tensor_split(s.args[4], dim=d)[s.args[5]] for x, d in zip(s.args, dims))


def pieces(s: Observed) -> tuple[Tensor, ...]:
    """An nth of the features of every head."""
    parts = [x.unflatten(0, (-1, HEAD_DIM)) for x in (*s.args[:3], s.args[3].t())]
    q, k, v, o = (x.tensor_split(s.args[4], dim=1)[s.args[5]].flatten(0, 1) for x in parts)
    return q, k, v, o.t()


def refused(s: Observed) -> tuple[bool, bool]:
    """Whether the function raised ValueError, and whether it should."""
    return isinstance(s.y, str), isinstance(s.right[0], str)


READ = "read = _rows(head_dim, num_kv_heads, num_ranks, rank)"
RETURN = "return query[own], key[read], value[read], out[:, own]"
RANKS = "list(range(first, first + num_copies))"


def reads(heads: str) -> Patch:
    """Another choice of key-value heads; `mine` is the range of the rank's query heads."""
    mine = "range(rank * num_heads // num_ranks, (rank + 1) * num_heads // num_ranks)"
    return patch(
        READ,
        f"mine = {mine}\n    read = [h * head_dim + i for h in {heads} for i in range(head_dim)]",
    )


MISTAKES = [
    Mistake(
        "splits along the wrong dimension",
        "The features of a head are rows of query, key and value, and columns of out. A rank has "
        "the rows and the columns of its heads.",
        seen=lambda s: (
            s.is_answer([(*s.right[0][:3], nths(s, 0, 0)[3])])
            or s.is_answer([nths(s, 1, 0)])
            or s.is_answer([nths(s, 1, 1)])
            or (s.y[3].shape[1] == s.args[3].shape[1] and s.args[4] > 1)
        ),
        made_by=patch("out[:, own]", "out.tensor_split(num_ranks)[rank]"),
    ),
    Mistake(
        "has no whole key-value head",
        "With fewer key-value heads than ranks, each rank has a part of a head here, or none. The "
        "whole head must be copied to all n/G ranks whose query heads read it.",
        seen=lambda s: s.y[1].shape[0] < HEAD_DIM and close(s.y[0], s.right[0][0]),
        made_by=patch(READ, "read = _rows(1, key.shape[0], num_ranks, rank)"),
    ),
    Mistake(
        "cuts every head into pieces",
        "Each rank has an nth of the features of every head. A score is a sum over all K features, "
        "and softmax needs the whole sum. A rank has whole heads.",
        seen=lambda s: s.is_answer([pieces(s)]),
        made_by=patch(
            RETURN,
            "cut = lambda x: x.unflatten(0, (-1, head_dim)).tensor_split(num_ranks, 1)[rank]\n"
            "    query, key, value, out = (cut(x) for x in (query, key, value, out.t()))\n"
            "    return *(x.flatten(0, 1) for x in (query, key, value)), out.flatten(0, 1).t()",
        ),
    ),
    Mistake(
        "returns key for value",
        "Key and value are split in the same way, but they are two weights.",
        hint=3,
        seen=lambda s: s.is_answer([[s.right[0][i] for i in (0, 1, 1, 3)]]),
        made_by=patch("value[read]", "key[read]"),
    ),
    Mistake(
        "deals heads in turn",
        "Rank r has the heads r, r + n, ... here. Heads are given in blocks: a rank's query heads "
        "then read the same key-value heads, or neighbours.",
        seen=deals,
        made_by=reads("range(rank, num_kv_heads, num_ranks) or [rank % num_kv_heads]"),
    ),
    Mistake(
        "keeps all key-value heads on every rank",
        "A rank needs only the key-value heads that its query heads read. With all of them its KV "
        "cache is as large as on one rank.",
        seen=lambda s: are(s, own(s.args), range(s.args[7])),
        made_by=reads("range(num_kv_heads)"),
    ),
    Mistake(
        "repeats key-value heads for each query head",
        "Several query heads of a rank read one key-value head. The shard has that head once.",
        seen=lambda s: are(s, own(s.args), [h * s.args[7] // s.args[6] for h in own(s.args)]),
        made_by=reads("(h * num_kv_heads // num_heads for h in mine)"),
    ),
    Mistake(
        "gives query heads the wrong key-value head",
        "Query head h reads key-value head h // (H/G), not h % G and not h // G: the H/G query "
        "heads of a group lie side by side.",
        hint=2,
        seen=has_wrong_keys,
        made_by=reads("sorted({h % num_kv_heads for h in mine})"),
    ),
    Mistake(
        "refuses ranks that can share the heads",
        "n must divide H, and one of n and G must divide the other. With more ranks than key-value "
        "heads, each key-value head is copied to n/G ranks.",
        seen=lambda s: refused(s) == (True, False),
        made_by=patch("(is_split or is_copied)", "is_split"),
    ),
    Mistake(
        "accepts ranks that cannot share the heads",
        "n must divide H, and one of n and G must divide the other. Otherwise raise ValueError.",
        hint=2,
        seen=lambda s: refused(s) == (False, True),
        made_by=patch(" and (is_split or is_copied)", ""),
    ),
    Mistake(
        "the error does not end with the choices",
        "The message ends with all possible numbers of ranks, ascending: the divisors of H that "
        "divide G or are multiples of G.",
        hint=3,
        seen=lambda s: refused(s) == (True, True),
        made_by=patch("; try {', '.join(map(str, choices))}", ""),
    ),
    Mistake(
        "raises another error than ValueError",
        "These ranks cannot share the heads. The caller expects a ValueError that ends with the "
        "possible numbers of ranks.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: s.case.function == SPLIT and isinstance(s.right[0], str),
        made_by=patch("raise ValueError(", "raise RuntimeError("),
    ),
    Mistake(
        "returns too few copies, or all ranks",
        "With n > G each key-value head is on n/G ranks, `rank` among them. With n <= G every rank "
        "has other key-value heads, and the answer is [rank].",
        function=COPIES,
        formula=[
            lambda n, rank, kv: [rank],
            lambda n, rank, kv: list(range(n)) if n > kv else [rank],
            lambda n, rank, kv: list(range(n)),
            lambda n, rank, kv: [r for r in right(n, rank, kv) if r != rank],
            lambda n, rank, kv: [r for r in right(n, rank, kv) if r != rank] or [rank],
        ],
        made_by=patch(RANKS, "[rank]"),
    ),
    Mistake(
        "looks for copies on the wrong ranks",
        "The n/G ranks with one key-value head lie side by side, as their query heads do: "
        "rank // (n/G) is the same for all of them.",
        hint=2,
        function=COPIES,
        formula=[
            lambda n, rank, kv: list(range(rank % kv, n, kv)) if n > kv else [rank],
            lambda n, rank, kv: list(range(rank // kv * kv, rank // kv * kv + kv)),
            lambda n, rank, kv: [
                r for r in range(n) if r // kv == rank // kv and n > kv or r == rank
            ],
            lambda n, rank, kv: list(range(rank, rank + max(1, n // kv))),
        ],
        made_by=patch(RANKS, "list(range(rank % num_kv_heads, num_ranks, num_kv_heads))"),
    ),
]

GRADER = Questions(
    name=SPLIT,
    functions=(SPLIT, COPIES),
    cases=cases,
    right=right,
    same=same,
    call=call,
    describe=describe,
    mistakes=MISTAKES,
    closed=("labkit.tensor_parallel",),
    new_result=False,
    shown="every rank has whole heads, and the key-value heads that these read; impossible numbers "
    "of ranks are refused, and the error names the possible ones; kv_copies finds all copies",
)
