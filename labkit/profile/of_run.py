"""A Run as a Trace: what labkit's own journal of a run says.

with world.region("step"):              a training step
    with world.region("data"):          loading: any region whose name begins with "data"
        batch = next(batches)
    ...                                 anything else in which the rank does not wait: compute
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.comm.operation import Operation, Timeline
from labkit.launch import Run
from labkit.profile.activity import doing, end_of
from labkit.profile.step_trace import (
    COMPUTE,
    DATA,
    MESSAGES,
    Exchange,
    RankTrace,
    Trace,
    Work,
    WorkKind,
)

STEP = "step"


def of_run(run: Run | Sequence[Timeline]) -> Trace:
    """The trace of a run, or of timelines by rank. Operations without an end are left out."""
    timelines = run.timeline if isinstance(run, Run) else run
    ranks = {rank: _rank(rank, timeline) for rank, timeline in enumerate(timelines)}
    return Trace(len(ranks), ranks)


def _rank(rank: int, timeline: Timeline) -> RankTrace:
    steps = [each for each in timeline.regions if each.name == STEP and each.end_s is not None]
    inside = [each for each in timeline.regions if each.name != STEP]
    own = Timeline(timeline.operations, inside, timeline.start_s, timeline.end_s)
    work = [
        Work(span.start_s, span.end_s, _kind(span.label), span.label)
        for span in doing(own, end_of(timeline))
        if span.operation is None
    ]
    exchanges = [
        _exchange(rank, each)
        for each in timeline.operations
        if each.done_s is not None and len(each.group) > 1
    ]
    marks = [(each.start_s, each.end_s) for each in steps if each.end_s is not None]
    own_trace = RankTrace(rank, timeline.start_s, end_of(timeline), work, exchanges, marks)
    return own_trace.of_steps()


def _kind(region: str) -> WorkKind:
    return DATA if region.startswith("data") else COMPUTE


def _exchange(rank: int, operation: Operation) -> Exchange:
    group = operation.group
    key: tuple = (group, operation.group_name, operation.sequence)
    if operation.kind in MESSAGES and operation.peer is not None:
        ends = (rank, operation.peer) if operation.kind == "send" else (operation.peer, rank)
        group, key = ends, (*key, *ends)
    assert operation.done_s is not None
    return Exchange(
        key,
        operation.kind,
        group,
        operation.posted_s,
        operation.waited_s,
        operation.done_s,
        operation.payload_bytes,
        operation.name,
    )
