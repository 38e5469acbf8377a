"""What is to be scheduled: stages on ranks, microbatches, whole costs, backwards whole or split.

    Problem(placement=(0, 1), num_microbatches=2)                 two ranks, a stage each
    Problem(placement=(0, 1, 1, 0), num_microbatches=2)           two stages each, folded: a V

A Schedule is an answer to it. Costs and memory are whole numbers, so that times and sums are exact
and "the least" has no rounding in it; any rational costs become whole in a smaller unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from labkit import arguments
from labkit.pipeline.op import Kind
from labkit.pipeline.simulation import Costs, plain


@dataclass(frozen=True)
class Problem:
    """placement[stage]: the rank that holds it; every rank holds one at least.

    costs: whole numbers, 1 or more for an operation (a whole backward takes I and W together), 0 or
    more for a message. is_split: every backward is I and W; otherwise it is B. activation: of one
    microbatch on one stage, a whole number or one per stage; kept_for_weights: the share of it that
    an I leaves for its W, such that this, too, is whole. ValueError for numbers that cannot be,
    TypeError for what is none. placement and activation may be lists of any kind, and are kept as
    tuples.
    """

    placement: tuple[int, ...]
    num_microbatches: int
    costs: Costs = field(default_factory=Costs)
    is_split: bool = False
    activation: int | Sequence[int] = 1
    kept_for_weights: float = 1.0

    def __post_init__(self) -> None:
        for name in ("placement", "activation"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        self._check_placement()
        arguments.whole("num_microbatches", self.num_microbatches, "1 or more")
        arguments.instance("costs", self.costs, Costs, "give Costs(forward=1, send=0)")
        arguments.instance("is_split", self.is_split, bool, "give True or False")
        share = self.kept_for_weights
        arguments.number("kept_for_weights", share, "0 to 1", least=0, most=1)
        for kind in self.kinds:
            _whole(f"the cost of {kind}", self.costs.of(kind, self.num_stages), least=1)
        _whole("send", self.costs.of_sends(self.num_stages), least=0)
        _whole("what an I leaves", [size * share for size in self.held], least=0)

    def _check_placement(self) -> None:
        if not isinstance(self.placement, tuple) or not self.placement:
            raise ValueError(f"placement={self.placement!r}: give by stage its rank, as in (0, 1)")
        for stage, rank in enumerate(self.placement):
            arguments.whole(f"placement[{stage}]", rank, "0 or more", least=0)
        if sorted(set(self.placement)) != list(range(len(set(self.placement)))):
            raise ValueError(
                f"placement={self.placement}: give by stage its rank, 0 and up, none left out"
            )

    @property
    def num_stages(self) -> int:
        """Of the whole pipeline."""
        return len(self.placement)

    @property
    def num_ranks(self) -> int:
        """p."""
        return 1 + max(self.placement)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What a step is made of: F and B, or F, I and W."""
        return (Kind.F, Kind.I, Kind.W) if self.is_split else (Kind.F, Kind.B)

    @cached_property
    def held(self) -> list[int]:
        """By stage, the memory of one microbatch between its F and the end of its backward."""
        given: Any = self.activation
        sizes = given if isinstance(given, tuple) else (given,)
        for size in sizes:
            arguments.number("activation", size, "a whole number, 0 or more", least=0)
        _whole("activation", sizes, least=0)
        if isinstance(given, tuple):
            if len(sizes) != self.num_stages:
                raise ValueError(
                    f"activation has {len(sizes)} sizes for {self.num_stages} stages; "
                    "give one for each"
                )
            return [int(size) for size in sizes]
        return [int(given)] * self.num_stages

    def change(self, kind: Kind, stage: int) -> int:
        """What an operation adds to the memory of its rank, once it has ended."""
        held = self.held[stage]
        kept = round(held * self.kept_for_weights)
        return {Kind.F: held, Kind.B: -held, Kind.I: kept - held, Kind.W: -kept}[kind]

    @property
    def least_memory(self) -> list[int]:
        """By rank, what no step does without: before the first backward, one F of each stage."""
        return [
            sum(self.held[stage] for stage, holder in enumerate(self.placement) if holder == rank)
            for rank in range(self.num_ranks)
        ]

    def cost(self, kind: Kind, stage: int) -> int:
        """Of one operation."""
        return int(self.costs.of(kind, self.num_stages)[stage])

    def send_cost(self, stage: int) -> int:
        """From a stage to the next, or back; 0 where both are on one rank."""
        if self.placement[stage] == self.placement[stage + 1]:
            return 0
        return int(self.costs.of_sends(self.num_stages)[stage])

    @property
    def all_costs(self) -> list[int]:
        """Of every operation and message."""
        operations = [self.cost(kind, s) for kind in self.kinds for s in range(self.num_stages)]
        return operations + [self.send_cost(stage) for stage in range(self.num_stages - 1)]

    @property
    def serial(self) -> int:
        """The time of one microbatch after another, in which every rank holds the least memory."""
        there = sum(self.cost(kind, s) for kind in self.kinds for s in range(self.num_stages))
        sends = sum(self.send_cost(stage) for stage in range(self.num_stages - 1))
        return self.num_microbatches * (there + 2 * sends)


def _whole(name: str, numbers: Sequence[float], least: int) -> None:
    for number in numbers:
        if number < least or number != int(number):
            raise ValueError(
                f"{name} is {number}: the search counts in whole numbers of {least} or more; take "
                "a smaller unit"
            )
