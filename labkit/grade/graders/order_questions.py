"""Pipelines for send_recv_order: ranks and microbatches drawn for each check, a question a rank."""

import random
from dataclasses import dataclass

from labkit.grade.answers import Question
from labkit.pipeline import Schedule, one_f_one_b, plan


@dataclass(frozen=True)
class Pipe:
    """A pipeline with 1F1B."""

    p: int
    m: int

    @property
    def schedule(self) -> Schedule:
        """Its operations, by rank."""
        return plan(one_f_one_b, self.p, self.m)

    def __str__(self) -> str:
        return f"p={self.p}, m={self.m}"


def draw(rng: random.Random) -> list[Pipe]:
    """Small ones first; even and odd p, with fewer microbatches than ranks, as many, and more."""
    return [
        Pipe(2, rng.randrange(2, 5)),
        Pipe(1, rng.randrange(1, 5)),
        Pipe(2, 1),
        Pipe(3, rng.randrange(4, 8)),
        Pipe(3, 2),
        Pipe(4, rng.randrange(5, 9)),
        Pipe(4, 4),
        Pipe(4, rng.randrange(2, 4)),
        Pipe(5, rng.randrange(6, 10)),
        Pipe(5, rng.randrange(1, 5)),
        Pipe(5, 5),
        Pipe(6, rng.randrange(7, 12)),
        Pipe(rng.randrange(6, 9), rng.randrange(2, 6)),
    ]


def questions_of(pipes: list[Pipe]) -> list[Question[Pipe]]:
    """One for each rank, in order."""
    return [
        Question("send_recv_order", (rank, pipe.p, pipe.m, [*map(str, row)]), f"{pipe}", pipe)
        for pipe in pipes
        for rank, row in enumerate(pipe.schedule.rows)
    ]
