"""Tokens, and experts for them, for expert_all_to_all; whole numbers, so that results are exact."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.grade.evidence import Case

THE_WAY_BACK = 3
"""Which collective brings results back: after the counts, and the rows."""
_MAX_DELAY_S = 0.002
_MOST_DRAWS = 200
_LARGEST = 5000


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have."""

    tokens: Sequence[Tensor]
    """By rank: (T, D)."""
    experts: Sequence[Tensor]
    """By rank: (T,)."""
    weights: Tensor
    """(E, 1 + D): of each expert the factor, and what it adds."""

    @property
    def num_ranks(self) -> int:
        """n"""
        return len(self.tokens)

    @property
    def num_experts(self) -> int:
        """E"""
        return len(self.weights)

    @property
    def num_here(self) -> int:
        """Experts of a rank."""
        return self.num_experts // self.num_ranks

    @property
    def row_bytes(self) -> int:
        """Of one token."""
        return self.tokens[0].shape[1] * self.tokens[0].element_size()

    @property
    def counts(self) -> Tensor:
        """(n, E): how many tokens each rank has for each expert."""
        each = [torch.bincount(experts, minlength=self.num_experts) for experts in self.experts]
        return torch.stack(each)

    @property
    def sent_rows(self) -> list[int]:
        """By rank: tokens that go elsewhere, and results of tokens from elsewhere."""
        between = self.counts.view(self.num_ranks, self.num_ranks, -1).sum(2)
        away = between.sum(1) - between.diagonal()
        coming = between.sum(0) - between.diagonal()
        return list((away + coming).tolist())

    @property
    def expected(self) -> list[Tensor]:
        """By rank: the outputs."""
        pairs = zip(self.tokens, self.experts, strict=True)
        return [computed(rows, self.weights[experts]) for rows, experts in pairs]


def computed(rows: Tensor, weights: Tensor) -> Tensor:
    """What experts with these weights make of rows; both by row, or the weights of one expert."""
    return rows * weights[..., :1] + weights[..., 1:]


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    tokens, experts, weights = zip(*case.arguments, strict=True)
    return Given(tokens, experts, torch.cat(weights))


def random_cases(
    world_size: int, rng: random.Random, is_telling: Callable[[Given], bool]
) -> list[Case]:
    """The cases of one world size, the first of which tells mistakes apart."""
    n, draw = world_size, Draw(world_size, rng)
    late, all_late = rng.randrange(n), (_MAX_DELAY_S,) * n
    late_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    empty = [0 if rank == late else rng.randrange(3, 8) for rank in range(n)]
    first = draw.until(is_telling)
    cases = [
        draw.case("uneven numbers of tokens", first),
        draw.case("the last expert gets none", draw.given(avoids_last=True)),
        draw.case("a rank whose experts get none", draw.given(avoids_first_rank=True)),
        draw.case("a rank without tokens", draw.given(numbers=empty)),
        draw.case("all to one expert", draw.given(favourite=rng.randrange(2 * n))),
        draw.case("no tokens at all", draw.given(numbers=[0] * n)),
        draw.case("one expert on each rank", draw.given(num_here=1)),
        draw.case("as many for each expert", draw.even()),
        draw.case("float64", draw.given(dtype=torch.float64)),
        draw.case("one feature", draw.given(width=1)),
        draw.case("many tokens", draw.given(numbers=rng.sample(range(150, 250), n))),
        replace(draw.case(f"rank {late} late", draw.given()), delays_s=late_s),
        replace(draw.case("every rank at its own pace", draw.given()), delays_s=all_late),
        draw.case("what comes back is changed", draw.even()),
    ]
    if n == 1:  # to which nothing comes
        return cases[:-1]
    return [*cases[:-1], replace(cases[-1], altered=(rng.randrange(n), THE_WAY_BACK))]


class Draw:
    """Random inputs of one world size."""

    def __init__(self, world_size: int, rng: random.Random) -> None:
        self._n, self._rng = world_size, rng
        self._generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def case(self, label: str, given: Given) -> Case:
        """The case of these inputs, with their numbers in words."""
        numbers = ", ".join(str(len(rows)) for rows in given.tokens)
        dtype = str(given.weights.dtype).removeprefix("torch.")
        about = (
            f"{label}: {numbers} tokens of {given.tokens[0].shape[1]} {dtype}, "
            f"{given.num_experts} experts"
        )
        weights = given.weights.split(given.num_here)
        arguments = tuple(zip(given.tokens, given.experts, weights, strict=True))
        return Case(about, arguments, (0.0,) * self._n)

    def given(
        self,
        numbers: Sequence[int] | None = None,
        *,
        num_here: int | None = None,
        width: int | None = None,
        dtype: torch.dtype = torch.float32,
        favourite: int | None = None,
        avoids_last: bool = False,
        avoids_first_rank: bool = False,
    ) -> Given:
        """Tokens at random. favourite: the expert of all."""
        num_here = num_here or (2 if favourite is not None else self._rng.choice((2, 3)))
        num_experts, width = self._n * num_here, width or self._rng.randrange(6, 10)
        numbers = numbers or self._rng.sample(range(5, 13), self._n)
        experts = [self._integers(num_experts, number) for number in numbers]
        last = num_experts - 2 if avoids_last else num_experts - 1
        for each in experts:
            each.clamp_(max=last, min=num_here if avoids_first_rank and self._n > 1 else 0)
            # On every rank: then no rank's counts are shorter than another's.
            each[len(each) // 2 : len(each) // 2 + 1] = last
        if favourite is not None:
            experts = [torch.full_like(each, favourite) for each in experts]
        return self._of(experts, num_experts, width, dtype)

    def even(self) -> Given:
        """Every rank has as many for every expert: two."""
        num_experts = 2 * self._n
        twice = torch.arange(num_experts).repeat(2)
        experts = [
            twice[torch.randperm(len(twice), generator=self._generator)] for _ in range(self._n)
        ]
        return self._of(experts, num_experts, self._rng.randrange(6, 10), torch.float32)

    def until(self, is_enough: Callable[[Given], bool]) -> Given:
        """Inputs that will do."""
        for _ in range(_MOST_DRAWS):
            given = self.given()
            if is_enough(given):
                return given
        raise AssertionError(f"{_MOST_DRAWS} draws, and none of them will do")

    def _of(
        self, experts: Sequence[Tensor], num_experts: int, width: int, dtype: torch.dtype
    ) -> Given:
        tokens = [1 + self._integers(_LARGEST, len(each), width).to(dtype) for each in experts]
        factors = 2 + torch.randperm(num_experts, generator=self._generator)[:, None]
        shifts = 1 + self._integers(_LARGEST, num_experts, width)
        return Given(tokens, list(experts), torch.cat([factors, shifts], 1).to(dtype))

    def _integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, generator=self._generator)
