"""Record the steps of a loop with PyTorch Profiler, one file per rank, for `read`.

`trace_of_run` makes a Trace of a Run, out of labkit's own journal:

with world.region("step"):              a training step
    with world.region("data"):          loading: any region whose name begins with "data"
        batch = next(batches)
    ...                                 anything else in which the rank does not wait: compute
"""

from __future__ import annotations

import bisect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.comm.operation import WAITS, Operation, Timeline
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
    with_waits,
)

if TYPE_CHECKING:
    from labkit.comm import Group
    from labkit.launch.run_result import Run


@contextmanager
def recording(
    world: Group, folder: str | Path, *, memory: bool = False
) -> Iterator[Callable[[], None]]:
    """Record every step of a loop that calls what this yields at the end of each.

        with profile.recording(world, "traces") as step:
            for batch in loader:
                ...
                step()

    Writes folder/rank0.json and so on, for CPU and GPU ranks. The first step is a warmup and is not
    recorded.

    memory: record allocations, but only operators of the calling thread: torch's profiler records
    either other threads or memory.
    """
    import torch
    from torch.profiler import ProfilerActivity

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else each rank prints that it started
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=1_000_000)
    threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=not memory)
    with torch.profiler.profile(
        activities=activities,
        schedule=plan,
        record_shapes=True,
        profile_memory=memory,
        acc_events=True,
        experimental_config=threads,
    ) as found:
        yield found.step
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    found.export_chrome_trace(str(path / f"rank{world.rank}.json"))


STEP = "step"
# Waiting for a result that has already arrived takes less than this, also on a busy machine.
_WAKE_UP_S = 1e-4


def trace_of_run(run: Run | Sequence[Timeline]) -> Trace:
    """Return the trace of a run, or of timelines by rank. Operations without an end are left out.

    The times of several hosts are on one clock if all ranks left the first meeting at the same
    moment and clocks did not drift. If a rank has a result before the last rank has arrived, the
    clocks are aligned.

    Ranks that `Run.load(..., partial=True)` did not find are left out. ValueError if none is left.
    """
    timelines = run if isinstance(run, Sequence) else run.timeline
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
        if span.operation is None and span.label != WAITS
    ]
    done = [
        op
        for op in timeline.operations
        if op.done_s is not None and len(op.group) > 1 and not op.failed
    ]
    exchanges = [_exchange(rank, op) for op in done if not op.in_background]
    exchanges += with_waits(work, _in_background(done, [each.start_s for each in steps]))
    exchanges.sort(key=lambda each: each.posted_s)
    marks = [(each.start_s, each.end_s) for each in steps if each.end_s is not None]
    own_trace = RankTrace(rank, timeline.start_s, end_of(timeline), work, exchanges, marks)
    return own_trace.of_steps()


def _kind(region: str) -> WorkKind:
    return DATA if region.startswith("data") else COMPUTE


def _in_background(operations: list[Operation], steps: list[float]) -> Iterator[Exchange]:
    """Yield the background operations of one label in a step as one exchange: a bucket.

    steps: the times when steps start.
    """
    turns: Counter[tuple] = Counter()
    found = [op for op in operations if op.in_background]
    for (*key, _), run in groupby(
        found, key=lambda op: (op.group_name, op.label, bisect.bisect(steps, op.posted_s))
    ):
        parts = list(run)
        turns[*key] += 1
        yield Exchange(
            (*key, turns[*key]),
            "all_reduce",
            parts[0].group,
            parts[0].posted_s,
            None,
            max(op.done_s or op.posted_s for op in parts),
            _payload(parts),
            f"{parts[0].label} #{turns[*key]}",
        )


def _payload(messages: list[Operation]) -> int:
    """Return the bytes of an all-reduce's tensor: this rank has sent 2(n-1)/n of them."""
    size = len(messages[0].group)
    return round(sum(op.sent_bytes for op in messages) * size / (2 * (size - 1)))


def _exchange(rank: int, operation: Operation) -> Exchange:
    group = operation.group
    key: tuple = (group, operation.group_name, operation.sequence)
    if operation.kind in MESSAGES and operation.peer is not None:
        ends = (rank, operation.peer) if operation.kind == "send" else (operation.peer, rank)
        group, key = ends, (*key, *ends)
    assert operation.done_s is not None
    waited_s = operation.waited_s
    if waited_s is not None and operation.done_s - waited_s < _WAKE_UP_S:
        waited_s = operation.done_s  # it had arrived before, at an unknown time
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
