"""A hang on four real ranks, and what their journals say about it."""

import torch

from labkit import Deadlock, Group
from labkit.comm import Timeline
from labkit.interview.runs.real_run import real_run, run


@real_run
def blocked() -> tuple[int, int]:
    """How many ranks of how many are idle in an operation, where one has a batch too few."""
    return sum(map(_is_blocked, _hang())), len(_hang())


@real_run
def rank_that_left() -> int:
    """In the same run the rank, counted from 0, whose last operation has ended."""
    (left,) = (rank for rank, timeline in enumerate(_hang()) if not _is_blocked(timeline))
    return left


@real_run
def last_collective(rank: int) -> int:
    """The number, from 1, of a rank's last all-reduce in the same run."""
    return len(_hang()[rank].operations)


@real_run
def _hang() -> list[Timeline]:
    try:
        run(_one_batch_too_few, 4, stall=1)
    except Deadlock as error:
        return error.timeline
    raise RuntimeError("the run ended, and was meant to hang")


def _is_blocked(timeline: Timeline) -> bool:
    return timeline.operations[-1].done_s is None  # an operation without an end


def _one_batch_too_few(world: Group) -> None:
    for _ in range(3 if world.rank == 1 else 4):
        world.all_reduce(torch.ones(1000), "mean")
