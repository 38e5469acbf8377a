"""Pipelines for which a schedule is asked: as deep as they come, and the ones at the edges."""

import random
from dataclasses import dataclass

from labkit.pipeline import Costs, Kind


@dataclass(frozen=True)
class Pipeline:
    """p ranks and m microbatches; `virtual` stages per rank, stage s on rank s mod p."""

    num_ranks: int
    num_microbatches: int
    virtual: int = 1

    @property
    def num_stages(self) -> int:
        """Of the whole model."""
        return self.num_ranks * self.virtual

    def __str__(self) -> str:
        ranks = f"{self.num_ranks} rank" + "s" * (self.num_ranks > 1)
        microbatches = f"{self.num_microbatches} microbatch" + "es" * (self.num_microbatches > 1)
        stages = f", {self.virtual} stages on each" if self.virtual > 1 else ""
        return f"{ranks}, {microbatches}{stages}"


@dataclass(frozen=True)
class Row:
    """What one call asks for."""

    pipeline: Pipeline
    rank: int


def draw(rng: random.Random) -> list[Pipeline]:
    """Small and plain first; then one rank, one microbatch, fewer microbatches than ranks."""
    deep = rng.randrange(4, 9)
    square = rng.randrange(2, 6)
    sizes = [
        (rng.randrange(3, 5), rng.randrange(5, 8)),
        (2, rng.randrange(3, 7)),
        (1, rng.randrange(2, 9)),
        (rng.randrange(2, 9), 1),
        (deep, rng.randrange(2, deep)),
        (square, square),
        (square, square + 1),
        (square + 1, square),
        (1, 1),
        (8, rng.randrange(9, 17)),
        (rng.randrange(3, 8), rng.randrange(8, 17)),
        (rng.randrange(1, 9), rng.randrange(1, 17)),
    ]
    return [Pipeline(*size) for size in sizes]


def draw_interleaved(rng: random.Random) -> list[Pipeline]:
    """With two stages per rank and with more; microbatches are one round of p, or several."""
    sizes = [
        (2, 2, 2),
        (rng.randrange(3, 5), 2, 2),
        (2, rng.randrange(3, 6), 2),
        (rng.randrange(2, 5), 1, 2),
        (3, 2, 3),
        (1, rng.randrange(1, 6), 2),
        (1, rng.randrange(2, 6), rng.randrange(3, 5)),
        (rng.randrange(5, 9), rng.randrange(1, 3), 2),
        (rng.randrange(2, 6), rng.randrange(2, 4), rng.randrange(3, 5)),
        (rng.randrange(1, 7), rng.randrange(1, 4), rng.randrange(2, 5)),
    ]
    return [Pipeline(p, p * rounds, virtual) for p, rounds, virtual in sizes]


def cost_of(costs: Costs, kind: Kind) -> float:
    """Of one operation, on every stage the same."""
    return costs.of(kind, 1)[0]


def cost_of_message(costs: Costs) -> float:
    """Between any two ranks the same."""
    return costs.of_sends(2)[0]
