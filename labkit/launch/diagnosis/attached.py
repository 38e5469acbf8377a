"""What every error of a run carries: where each rank is, as text and for programs."""

from __future__ import annotations

import time
from typing import Any

from labkit.comm import Timeline
from labkit.comm.words import ranks_named
from labkit.doctor import position, sources, stacks
from labkit.doctor.stage import Stage
from labkit.launch.driver.rank_state import Rank
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.ranks.report import Raised


def where_each_rank_is(supervisor: Supervisor) -> str:
    """The evidence: a table of all ranks, and the stacks of those that are in the function."""
    ranks_at: dict[str, list[int]] = {}
    for number, (rank, stack) in enumerate(
        zip(supervisor.ranks, supervisor.evidence.stacks, strict=True)
    ):
        if text := _frames(rank) or (rank.is_active and stack.text):
            ranks_at.setdefault(text, []).append(number)
    return f"Where each rank is:\n{position.table(supervisor.evidence.views)}" + "".join(
        f"\n\nStack of {ranks_named(numbers)}:\n{text}" for text, numbers in ranks_at.items()
    )


def _frames(rank: Rank) -> str:
    """Where the rank raised: the reader's own frames, innermost last."""
    if not isinstance(rank.report, Raised):
        return ""
    return sources.with_cells_named(stacks.own_frames(rank.report.traceback))


def positions(supervisor: Supervisor) -> list[str]:
    """Where each rank is, in words."""
    return [position.position_of(view) for view in supervisor.evidence.views]


def texts_of_stacks(supervisor: Supervisor) -> list[str]:
    """Of each rank that has not come back; else empty."""
    return [
        stack.text if rank.is_active or rank.stage is Stage.DIED else ""
        for rank, stack in zip(supervisor.ranks, supervisor.evidence.stacks, strict=True)
    ]


def to_error(supervisor: Supervisor) -> dict[str, Any]:
    """What programs can read of a failed run; its timelines go from "go" until now, or to the
    rank's end."""
    zero_s, now_s = supervisor.ready_s or time.monotonic(), time.monotonic()
    timelines = [
        Timeline(timeline.operations, timeline.regions, zero_s, rank.ended_s or now_s)
        for timeline, rank in zip(supervisor.evidence.timeline, supervisor.ranks, strict=True)
    ]
    return {
        "timeline": [timeline.shifted(zero_s) for timeline in timelines],
        "logs": [rank.output.log for rank in supervisor.ranks],
        "positions": positions(supervisor),
        "stacks": texts_of_stacks(supervisor),
    }
