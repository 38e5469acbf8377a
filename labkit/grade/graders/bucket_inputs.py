"""Sizes to put into buckets, and gradients of such sizes on ranks."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from labkit.grade.evidence import Case
from labkit.grade.graders.bucket_rules import RULES, Asked, right
from labkit.grade.watched_group import WatchedGroup

Tensor = torch.Tensor
_MAX_DELAY_S = 0.002
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def draw(rng: random.Random) -> list[Asked]:
    """Sizes that tell all rules apart; the plain ones first."""
    plain = _mixed(rng, 8)
    large = rng.randrange(30, 60)
    exact = rng.randrange(2, 9)
    return [
        plain,
        Asked((exact, 10 - exact, *plain.numels[:3], exact, 10 - exact), 4, 40),  # exactly full
        Asked((*plain.numels, large), 4, 80),  # the first to go in is too large
        Asked((large, *plain.numels), 4, 80),
        Asked((*plain.numels[:3], large, *plain.numels[3:]), 4, 80),
        Asked((large, large), 4, 80),
        Asked((rng.randrange(1, 9),), 2, 64),
        Asked((), 4, 64),
        *(_mixed(rng, rng.randrange(5, 30)) for _ in range(8)),
    ]


def _mixed(rng: random.Random, count: int) -> Asked:
    """Weights, biases, and a few that are larger than a bucket; small ones left over at the end."""
    while True:
        numels = [rng.choice((rng.randrange(1, 4), rng.randrange(5, 15))) for _ in range(count)]
        asked = Asked(tuple(numels), rng.choice((2, 4, 8)), rng.choice((64, 80, 96)))
        buckets = [rule.buckets(asked) for rule in RULES]
        telling = [
            rule.name for rule, its in zip(RULES, buckets, strict=True) if its != right(asked)
        ]
        if len(telling) >= len(RULES) - 4:
            return asked


def with_gradients(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: the call, and what is then in the memory of its gradients."""
    gradients, bucket_bytes = arguments
    mine = [torch.empty_like(each).copy_(each) for each in gradients]
    memory = [each.view_as(each) for each in mine]  # which `gradient.data = ...` does not move
    function(list(mine), bucket_bytes, group)
    return memory


def asked_in(case: Case) -> Asked:
    """The sizes of a case."""
    gradients, bucket_bytes = case.arguments[0]
    numels = tuple(each.numel() for each in gradients)
    return Asked(numels, gradients[0].element_size(), bucket_bytes)


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Buckets of several gradients, layouts, one bucket, a late rank; the last one is altered."""
    n = world_size
    several = _case(torch.float32, n, rng)
    other = _case(rng.choice(_DTYPES[1:]), n, rng)
    late = rng.randrange(n)
    single = replace(several, label="all in one bucket", arguments=_all_in_one(several))
    cases = [
        several,
        replace(other, delays_s=tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))),
        single,
    ]
    altered = replace(several, altered=(rng.randrange(n), 1))
    return cases if n == 1 else [*cases, altered]


def _all_in_one(case: Case) -> tuple[tuple[Any, ...], ...]:
    return tuple((gradients, 100_000) for gradients, _ in case.arguments)


def _case(dtype: torch.dtype, world_size: int, rng: random.Random) -> Case:
    # A size larger than a bucket, pairs that share one, and small ones left over at the end.
    shapes: Sequence[tuple[int, ...]] = ((), (3,), (2, 3), (4, 9), (2,), (5, 2), (3, 4), (7,), (6,))
    shapes = (*shapes[:2], *rng.sample(shapes[2:], len(shapes) - 2))
    bucket_bytes = 20 * dtype.itemsize

    def whole(shape: tuple[int, ...]) -> Tensor:
        """Multiples of the number of ranks; a matrix is transposed in memory."""
        generator = torch.Generator().manual_seed(rng.getrandbits(63))
        numbers = torch.randint(1, 10, shape[::-1], generator=generator)
        signs = torch.randint(0, 2, shape[::-1], generator=generator) * 2 - 1
        numbers = (numbers * signs * world_size).to(dtype)
        return numbers.t() if len(shape) == 2 else numbers

    arguments = tuple(([whole(shape) for shape in shapes], bucket_bytes) for _ in range(world_size))
    name = str(dtype).removeprefix("torch.")
    label = f"{len(shapes)} gradients in {name}, buckets of {bucket_bytes} bytes"
    return Case(label, arguments, (0.0,) * world_size)
