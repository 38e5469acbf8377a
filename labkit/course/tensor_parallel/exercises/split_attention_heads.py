"""Grade split_attention_heads: shards for drawn layouts, errors with the choices, and copies."""

import re
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g

SPLIT, COPIES = "split_attention_heads", "kv_copies"
HEAD_DIM = 48  # any number of ranks below divides it
LAYOUTS = [(2, 4, 4), (3, 6, 6), (2, 16, 8), (3, 12, 6), (1, 6, 2), (4, 8, 2), (6, 18, 3)]
LAYOUTS += [(8, 8, 4), (4, 8, 1), (16, 32, 8), (5, 8, 2), (16, 8, 8), (6, 12, 4), (4, 12, 6)]
"""Ranks, query heads, key-value heads: one or several for each rank, copies, impossible ones."""
HOLDERS = [(4, 2), (16, 8), (12, 3), (4, 1), (2, 4), (4, 4)]
"""Ranks and key-value heads."""


def cases(draw: g.Draw) -> list[g.Case]:
    """Return the first rank of each layout, the last one, and another."""

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
            g.Case(f"{label}{r}", *weights, n, r, num_heads, num_kv, function=SPLIT)
            for r in ranks(n)
        ]
    return asked + [
        g.Case(f"{n} ranks, {num_kv} key-value heads, rank {r}", n, r, num_kv, function=COPIES)
        for n, num_kv in HOLDERS + [(draw.rng.randrange(2, 5) * kv, kv) for kv in (3, 5, 7)]
        for r in ranks(n)
    ]


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Return the function's result, or the message of split_attention_heads' ValueError."""
    try:
        return watch.function(*args)
    except ValueError as error:
        if len(args) == 3:
            raise
        return f"ValueError: {error}"


def right(*args: Any) -> Any:
    """Head by head."""
    if len(args) == 3:
        n, rank, num_kv = args
        return [r for r in range(n) if r * num_kv // n == rank * num_kv // n]
    query, key, value, out, n, rank, num_heads, num_kv = args
    divisors = [i for i in range(1, num_heads + 1) if num_heads % i == 0]
    choices = [i for i in divisors if num_kv % i == 0 or i % num_kv == 0]
    if n not in choices:
        return f"ValueError: ... {choices}"
    own = [head for head in range(num_heads) if head * n // num_heads == rank]
    read = sorted({head * num_kv // num_heads for head in own})

    def rows(weight: Tensor, heads: list[int]) -> Tensor:
        return weight.unflatten(0, (-1, HEAD_DIM))[heads].flatten(0, 1)

    return rows(query, own), rows(key, read), rows(value, read), rows(out.t(), own).t()


def same(got: Any, expected: Any, case: g.Case) -> bool:
    """Tensors to the bit; of an error the numbers at its end."""
    if not isinstance(expected, str):
        return g.close(got, expected, case, steps=0)
    numbers, choices = (re.findall("[0-9]+", str(text)) for text in (got, expected))
    return isinstance(got, str) and numbers[-len(choices) :] == choices


def describe(s: g.Observed) -> str:
    """Return the heads of the first weight whose shard is wrong. Of other results it raises: then
    `got ..., expected ...` will do."""
    shards = zip(("query", "key", "value", "out"), s.y, s.right[0])
    name, *both = next(each for each in shards if not g.close(*each[1:], steps=0))
    heads = [sorted(set(x.int().flatten().tolist())) for x in both]
    got, expected = (f"{tuple(x.shape)} of heads {i}" for x, i in zip(both, heads))
    return f"{name}: got {got}, expected {expected}"


MINE = "range(rank * num_heads // num_ranks, (rank + 1) * num_heads // num_ranks)"
OWN = "_rows(head_dim, num_heads, num_ranks, rank)"
READ = "_rows(head_dim, num_kv_heads, num_ranks, rank)"
OF_HEADS = "torch.arange(len({})).unflatten(0, (-1, head_dim))[{}].flatten()"
INTERLEAVED = READ, OF_HEADS.format("key", "rank % num_kv_heads :: num_ranks")
MISTAKES = [
    g.Mistake(
        "splits along the wrong dimension",
        "The features of a head are rows of query, key and value, and columns of out. A rank has "
        "the rows and the columns of its heads.",
        [
            *g.patches("out[:, own]", "out.tensor_split(num_ranks)[rank]", "out[own]"),
            g.patch(
                "query[own], key[read], value[read]",
                "*(x.tensor_split(num_ranks, 1)[rank] for x in (query, key, value))",
            ),
        ],
    ),
    g.Mistake(
        "has no whole key-value head",
        "With fewer key-value heads than ranks, each rank has a part of a head here, or none. The "
        "whole head must be copied to all n/G ranks whose query heads read it.",
        g.patch(READ, "_rows(1, key.shape[0], num_ranks, rank)"),
        wrong=lambda s: s.y[1].shape[0] < HEAD_DIM and g.close(s.y[0], s.right[0][0]),
    ),
    g.Mistake(
        "gives ranks the wrong heads",
        "Heads are given in blocks: rank r has the r-th block, not the heads r, r + n, ... Query "
        "head h reads key-value head h // (H/G), not h % G and not h // G: the H/G query heads of "
        "a group lie side by side.",
        [
            g.patch(*INTERLEAVED),
            g.patch(*INTERLEAVED, OWN, OF_HEADS.format("query", "rank::num_ranks")),
            g.patch(READ, OF_HEADS.format("key", f"sorted({{h % num_kv_heads for h in {MINE}}})")),
        ],
        hint=2,
    ),
    g.Mistake(
        "has more key-value heads than it reads",
        "Several query heads of a rank read one key-value head. The shard has that head once, and "
        "no heads that other ranks read: they would make the KV cache larger.",
        g.patches(
            READ,
            "slice(None)",
            OF_HEADS.format("key", f"[h * num_kv_heads // num_heads for h in {MINE}]"),
        ),
    ),
    g.Mistake(
        "mixes up key and value",
        "Key and value are split in the same way, but they are two weights.",
        g.patches("key[read], value[read]", "key[read], key[read]", "value[read], key[read]"),
        hint=3,
    ),
    g.Mistake(
        "refuses, accepts or lists the wrong numbers of ranks",
        "n must divide H, and one of n and G must divide the other: with n > G each key-value head "
        "is copied to n/G ranks. Else raise ValueError. Its message ends with all possible n.",
        g.patch(" and (is_split or is_copied)", ""),
        wrong=lambda s: str in (type(s.y), type(s.right[0])),
        hint=2,
    ),
    g.Mistake(
        "returns other ranks than those with a copy",
        "With n > G each key-value head is on n/G ranks, `rank` among them. They lie side by side, "
        "as their query heads do: rank // (n/G) is the same for all. With n <= G it is [rank].",
        g.patches(
            "list(range(first, first + num_copies))",
            "list(range(rank % num_kv_heads, num_ranks, num_kv_heads))",
            "[r for r in range(first, first + num_copies) if r != rank] or [rank]",
        ),
        hint=2,
    ),
]

GRADER = g.Questions(
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
