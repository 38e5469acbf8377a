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
    aligned,
    has_one_clock,
    missing,
)

STEP = "step"
# A wait for a result that is there already returns within this time, also on a busy machine.
_WAKE_UP_S = 1e-4


def of_run(run: Run | Sequence[Timeline]) -> Trace:
    """The trace of a run, or of timelines by rank. Operations without an end are left out.

    A run of several hosts is on one clock as far as its ranks met at the start at one moment, and
    clocks did not drift. If a result came before the last rank had arrived, clocks are aligned.

    Ranks that `Run.load(..., partial=True)` did not find are left out. ValueError: all are.
    """
    timelines = run.timeline if isinstance(run, Run) else run
    ranks = {
        rank: _rank(rank, timeline)
        for rank, timeline in enumerate(timelines)
        if end_of(timeline) > timeline.start_s
    }
    if not ranks:
        raise ValueError(f"none of {len(timelines)} ranks has a journal: nothing ran")
    trace = Trace(len(timelines), ranks, missing(len(timelines), ranks))
    return trace if has_one_clock(trace) else aligned(trace)


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
        if each.done_s is not None and len(each.group) > 1 and not each.failed
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
    waited_s = operation.waited_s
    if waited_s is not None and operation.done_s - waited_s < _WAKE_UP_S:
        waited_s = operation.done_s  # it was there, no journal says since when
    return Exchange(
        key,
        operation.kind,
        group,
        operation.posted_s,
        waited_s,
        operation.done_s,
        operation.payload_bytes,
        operation.name,
    )
