"""Attention layers for split_attention_heads, with ranks that can share their heads or cannot."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.grade.answers import Question
from labkit.grade.evidence import Case

WEIGHTS = ("query", "key", "value", "out")


@dataclass(frozen=True)
class Layout:
    """Heads, and the ranks that are to share them."""

    num_ranks: int
    num_heads: int
    num_kv_heads: int

    def __str__(self) -> str:
        """`4 ranks, 8 heads, 2 key-value heads`"""
        ranks, heads = _counted(self.num_ranks, "rank"), _counted(self.num_heads, "head")
        return f"{ranks}, {heads}, {_counted(self.num_kv_heads, 'key-value head')}"

    @property
    def divides_heads(self) -> bool:
        """Whether no rank gets a part of a query head."""
        return self.num_heads % self.num_ranks == 0

    @property
    def is_even(self) -> bool:
        """Whether the heads can be shared."""
        return self.num_ranks in self.choices

    @property
    def choices(self) -> list[int]:
        """All numbers of ranks that can share these heads, ascending."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        return [
            n
            for n in range(1, heads + 1)
            if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)
        ]


@dataclass(frozen=True)
class Given:
    """A layout, and the whole weights in the order of WEIGHTS."""

    layout: Layout
    weights: list[Tensor]

    @property
    def head_dim(self) -> int:
        """K."""
        return len(self.weights[0]) // self.layout.num_heads


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    *weights, num_ranks, num_heads, num_kv_heads = case.arguments[0]
    return Given(Layout(num_ranks, num_heads, num_kv_heads), weights)


def random_cases(rng: random.Random) -> list[Case]:
    """Plain attention, grouped queries, copies, ranks that cannot; others for each check."""
    many = rng.choice((2, 3))
    plain = Layout(2, 2 * many, 2 * many)
    layouts = [
        plain,
        _drawn(rng, _has_several),
        Layout(1, 6, rng.choice((2, 3))),
        _drawn(rng, _has_copies),
        _drawn(rng, lambda each: each.is_even and each.num_ranks > each.num_kv_heads == 1),
        _drawn(rng, lambda each: _has_copies(each) and each.num_ranks == each.num_heads),
        Layout(16, 32, 8),
        _drawn(rng, lambda each: not each.divides_heads and each.num_ranks < each.num_heads),
        Layout(2 * plain.num_heads, plain.num_heads, plain.num_heads),
        _drawn(rng, lambda each: not each.is_even and each.divides_heads),
    ]
    return [_case(layout, rng) for layout in layouts]


def _has_several(layout: Layout) -> bool:
    """Several key-value heads for each rank, and more of them than a rank has query heads."""
    n, heads, kv_heads = layout.num_ranks, layout.num_heads, layout.num_kv_heads
    return layout.is_even and 1 < n < kv_heads and heads < n * kv_heads


def _has_copies(layout: Layout) -> bool:
    """Of more than one key-value head, for ranks with more than one rank between them."""
    return layout.is_even and 1 < layout.num_kv_heads < layout.num_ranks


def _drawn(rng: random.Random, fits: Callable[[Layout], bool]) -> Layout:
    """One of all that fit, with grouped queries."""
    layouts = [
        Layout(num_ranks, num_heads, num_kv_heads)
        for num_heads in (4, 6, 8, 12, 16, 18, 24)
        for num_kv_heads in range(1, num_heads)
        if num_heads % num_kv_heads == 0
        for num_ranks in range(2, num_heads + 1)
    ]
    return rng.choice([each for each in layouts if fits(each)])


def _case(layout: Layout, rng: random.Random) -> Case:
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    # Two ranks cut D, and K, into equal parts: mistakes in the first case come to their end. And a
    # head has more features than there are heads, so that its parts cannot look like others.
    head_dim, width = rng.choice((8, 10)), 2 * rng.randrange(3, 6)
    q_rows, kv_rows = layout.num_heads * head_dim, layout.num_kv_heads * head_dim
    shapes = ((q_rows, width), (kv_rows, width), (kv_rows, width), (width, q_rows))
    weights = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    arguments = (*weights, layout.num_ranks, layout.num_heads, layout.num_kv_heads)
    return Case(f"{layout}", (arguments,), (0.0,))


@dataclass(frozen=True)
class Holder:
    """A rank that may hold copies."""

    num_ranks: int
    rank: int
    num_kv_heads: int


def draw_holders(rng: random.Random) -> list[Question[Holder]]:
    """Copies of several heads and of one, more heads than ranks, as many, one rank."""
    pairs = [(4, 2), (16, 8), (6, 2), (12, 3), (4, 1), (2, 4), (3, 6), (4, 4), (1, 2), (8, 2)]
    pairs += [(kv * rng.randrange(2, 5), kv) for kv in rng.sample(range(2, 9), 3)]
    holders = [Holder(n, rank, kv) for n, kv in pairs for rank in (0, rng.randrange(n), n - 1)]
    return [
        Question(
            "kv_copies",
            (each.num_ranks, each.rank, each.num_kv_heads),
            f"{_counted(each.num_ranks, 'rank')}, "
            f"{_counted(each.num_kv_heads, 'key-value head')}: rank {each.rank}",
            each,
        )
        for each in holders
    ]
