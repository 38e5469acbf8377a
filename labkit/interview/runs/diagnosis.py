"""A hang on four real ranks, and what their journals say about it."""

import torch

from labkit import Deadlock, Group
from labkit.comm import Timeline
from labkit.interview.runs.real_run import real_run, run


@real_run
def num_blocked() -> int:
    """Ranks that stand still in an operation: of 4, where rank 1 has 3 batches and the others 4."""
    return sum(
        timeline.operations[-1].done_s is None
        for timeline in _hang()  # an operation without an end
    )


@real_run
def last_collective(rank: int) -> int:
    """The number, from 1, of a rank's last all-reduce in the same run."""
    return _hang()[rank].operations[-1].sequence


@real_run
def _hang() -> list[Timeline]:
    try:
        run(_one_batch_too_few, 4, stall=1)
    except Deadlock as error:
        return error.timeline
    raise RuntimeError("the run ended, and was meant to hang")


def _one_batch_too_few(world: Group) -> None:
    for _ in range(3 if world.rank == 1 else 4):
        world.all_reduce(torch.ones(1000), "mean")
