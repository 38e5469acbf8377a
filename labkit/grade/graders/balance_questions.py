"""Layers to be cut into stages, drawn for each check: plain ones, traps, and large ones."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from labkit import pipeline
from labkit.grade.answers import Question

Stages = list[list[int]]
"""By stage, the numbers of its layers."""
_MIDDLING = 60
_SHOWN = 14


@dataclass(frozen=True)
class Layers:
    """What is to be cut: the costs of layers, and into how many stages."""

    costs: tuple[int, ...]
    num_stages: int

    @property
    def size(self) -> str:
        """Of those with too many cuts to try: "middling" or "large"; else empty."""
        if len(self.costs) < _MIDDLING:
            return ""
        return "large" if len(self.costs) > _MIDDLING else "middling"

    @cached_property
    def best(self) -> int:
        """What the slowest stage costs at best."""
        return slowest(self.costs, one_of_the_best(self.costs, self.num_stages))

    def __str__(self) -> str:
        some = " ".join(map(str, self.costs[:_SHOWN]))
        more = f" ... ({len(self.costs)} layers)" if len(self.costs) > _SHOWN else ""
        stages = "1 stage" if self.num_stages == 1 else f"{self.num_stages} stages"
        return f"costs {some}{more}, {stages}"


def one_of_the_best(costs: Sequence[int], num_stages: int) -> Stages:
    """Exact: sums stay below 2**53, so that the library's floats are whole numbers."""
    assert sum(costs) < 2**53
    return [list(layers) for layers in pipeline.balance(costs, num_stages)]


def slowest(costs: Sequence[int], stages: Stages) -> int:
    """What the dearest stage costs."""
    return max(sum(costs[layer] for layer in stage) for stage in stages)


def draw(rng: random.Random) -> list[Question[Layers]]:
    """The plain ones first, the large ones last."""
    all_layers = [
        Layers((1, 4, 4, 4, 4, 9), 3),
        *_with_a_head(rng),
        *_where_numbers_mislead(rng),
        *_at_the_ends_of_the_contract(rng),
        *_close_calls(rng),
        _many(rng, _MIDDLING, 8),
        _many(rng, 200, 16),
    ]
    return [
        Question("balance", (list(each.costs), each.num_stages), str(each), each)
        for each in all_layers
    ]


def _with_a_head(rng: random.Random) -> Iterator[Layers]:
    """An embedding that costs little, equal blocks, and a head that costs several of them."""
    for _ in range(4):
        block, num_stages = rng.randrange(10, 40), rng.randrange(3, 6)
        num_blocks = num_stages * rng.randrange(2, 4) + rng.randrange(num_stages)
        head = int(block * rng.uniform(1.5, 3.5))
        yield Layers((rng.randrange(1, 4), *[block] * num_blocks, head), num_stages)


def _where_numbers_mislead(rng: random.Random) -> Iterator[Layers]:
    """Random costs, as they come; rising; and with one layer that is most of all, anywhere."""
    for _ in range(8):
        costs = [rng.randrange(1, 60) for _ in range(rng.randrange(8, 15))]
        yield Layers(tuple(costs), rng.randrange(3, 6))
    rising = sorted(rng.randrange(1, 60) for _ in range(10))
    yield Layers(tuple(rising), 4)
    yield Layers(tuple(reversed(rising)), 3)
    for at in (0, 4, 8):
        costs = [rng.randrange(1, 10) for _ in range(9)]
        costs[at] = 200  # the stages besides need no more than one layer each
        yield Layers(tuple(costs), 5)


def _at_the_ends_of_the_contract(rng: random.Random) -> Iterator[Layers]:
    """One stage, a stage for each layer, one layer, nothing but zeros, and layers that are free."""
    some = tuple(rng.randrange(1, 50) for _ in range(6))
    yield Layers(some, 1)
    yield Layers(some, 6)
    yield Layers((rng.randrange(1, 50),), 1)
    yield Layers((0,) * 5, 3)
    yield Layers((0, 0, rng.randrange(5, 9), 0, rng.randrange(5, 9), 0, 0, 3), 4)
    yield Layers((rng.randrange(2, 9),) * 10, 4)


def _close_calls(rng: random.Random) -> Iterator[Layers]:
    """FLOPs of nearly equal layers: of several cuts by the same numbers one is best, by little."""
    for num_layers, num_stages in ((10, 4), (11, 4), (13, 5), (14, 4)):
        base = 10**12
        costs = [base + rng.randrange(10**9) for _ in range(num_layers)]
        yield Layers(tuple(costs), num_stages)


def _many(rng: random.Random, num_layers: int, num_stages: int) -> Layers:
    """Blocks of which one may cost nearly ten times as much as another."""
    return Layers(tuple(rng.randrange(100, 1000) for _ in range(num_layers)), num_stages)
