"""A run as a Chrome trace: drop the file on https://ui.perfetto.dev.

One process per rank. Its first thread shows regions and, inside them, the time in which the rank
was blocked; the threads below it, as many as operations overlap, show what was in flight, from
posting to completion, with arrows from each send to its receive. Click on an operation in flight
for its bytes, shape, sequence number and line of code.

Format: Trace Event Format, JSON object form; "X" complete events, "s" and "f" flow events, "M"
metadata. Times are microseconds with nanosecond digits. Perfetto keeps process 0 and thread 0 for
the idle task and knows threads by their number alone: rank r is process r + 1, and no two processes
share a thread number.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.comm.operation import NETWORK, Operation, Timeline
from labkit.profile.activity import Span, blocked, end_of, in_flight
from labkit.viz.journals import matched_messages, timelines_of

Event = dict[str, Any]
_FIRST_WORK, _FIRST_FLIGHT = 0, 100  # within a rank's thread numbers


def write(run: Any, path: str | Path) -> Path:
    """Write the trace of `run` (a Run, or a list of Timelines by rank) to `path`; returns the path.

    Raises OSError if the file cannot be written, TypeError for an object without timelines.
    """
    path = Path(path)
    document = {
        "traceEvents": events(timelines_of(run)),
        "displayTimeUnit": "ms",
        "otherData": {"writer": "labkit"},
    }
    path.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    return path


def events(timelines: Sequence[Timeline]) -> list[Event]:
    """Return the trace's events by rank: metadata, work, operations in flight, then the arrows."""
    until_s = max((end_of(timeline) for timeline in timelines), default=0.0)
    result: list[Event] = []
    threads: list[dict[int, int]] = []  # by rank: operation's index -> thread of its event
    for rank, timeline in enumerate(timelines):
        work = [_slice(span, rank) for span in _work(timeline, until_s)]
        flight = [_slice(span, rank, _arguments) for span in in_flight(timeline, until_s)]
        _assign_threads(work, _thread(rank, _FIRST_WORK), may_nest=True)
        _assign_threads(flight, _thread(rank, _FIRST_FLIGHT), may_nest=False)
        threads.append({event["args"]["index"]: event["tid"] for event in flight})
        result += _names(rank, work, flight) + work + flight
    return result + _arrows(timelines, threads)


def _work(timeline: Timeline, until_s: float) -> list[Span]:
    regions = [
        Span(region.start_s, until_s if region.end_s is None else region.end_s, region.name)
        for region in timeline.regions
    ]
    return regions + blocked(timeline, until_s)


def _line(operation: Operation) -> Event:
    return {"line": str(operation.origin), "index": operation.index}


def _slice(span: Span, rank: int, arguments: Callable[[Operation], Event] = _line) -> Event:
    start_ns = round(span.start_s * 1e9)
    # An event without length cannot carry an arrow's end.
    length_ns = max(round(span.end_s * 1e9) - start_ns, 1)
    event: Event = {
        "name": span.label,
        "cat": "region",
        "ph": "X",
        "pid": _process(rank),
        "ts": start_ns / 1000,
        "dur": length_ns / 1000,
        "args": {},
    }
    if span.operation is not None:
        event |= {"name": _name(span.operation), "cat": span.operation.kind}
        event["args"] = arguments(span.operation)
    return event


def _name(operation: Operation) -> str:
    if operation.failed:
        return f"{operation.name} (failed)"
    return operation.name if operation.done_s is not None else f"{operation.name} (never done)"


def _arguments(operation: Operation) -> Event:
    arguments = {
        "index": operation.index,
        "line": str(operation.origin),
        "called_at": str(operation.site),
        "group": list(operation.group),
        "sequence": operation.sequence,
        "dtype": operation.dtype,
        "shape": list(operation.shape),
        "payload_bytes": operation.payload_bytes,
        "sent_bytes": operation.sent_bytes,
        "blocking": operation.blocking,
    }
    if operation.medium != NETWORK:
        arguments["medium"] = operation.medium
    if operation.reduce is not None:
        arguments["reduce"] = operation.reduce
    if operation.peer is not None:
        arguments["peer"] = operation.peer
    return arguments


def _assign_threads(slices: list[Event], first: int, *, may_nest: bool) -> None:
    """Give each event the lowest thread on which it overlaps none, or lies inside those it does.

    A viewer stacks the events of a thread like calls: half an overlap would be drawn wrongly.
    """
    slices.sort(key=lambda event: (_ns(event["ts"]), -_ns(event["dur"])))
    threads: list[list[int]] = []  # by thread: ends of the events that are open, outermost first
    for event in slices:
        start, end = _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])
        threads.append([])  # there is always one that is free
        for number, open_ends in enumerate(threads):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if not open_ends or (may_nest and end <= open_ends[-1]):
                open_ends.append(end)
                event["tid"] = first + number
                break
        if not threads[-1]:
            threads.pop()


def _names(rank: int, work: list[Event], flight: list[Event]) -> list[Event]:
    main = _thread(rank, _FIRST_WORK)
    named: list[tuple[str, int, Event]] = [("process_name", main, {"name": f"rank {rank}"})]
    named.append(("process_sort_index", main, {"sort_index": rank}))
    threads = {event["tid"]: "computing and waiting (2)" for event in work}
    threads |= {event["tid"]: "in flight" for event in flight}
    threads[main] = "computing and waiting"
    for thread, name in sorted(threads.items()):
        named.append(("thread_name", thread, {"name": name}))
        named.append(("thread_sort_index", thread, {"sort_index": thread}))
    return [
        {"name": name, "ph": "M", "pid": _process(rank), "tid": thread, "args": arguments}
        for name, thread, arguments in named
    ]


def _arrows(timelines: Sequence[Timeline], threads: list[dict[int, int]]) -> list[Event]:
    arrows: list[Event] = []
    for number, message in enumerate(matched_messages(timelines), start=1):
        if message.recv.done_s is None:
            continue
        start_ns = round(message.send.posted_s * 1e9)
        posted_ns = round(message.recv.posted_s * 1e9)
        # Just before the end: an event's last moment no longer counts as inside it.
        end_ns = max(round(message.recv.done_s * 1e9) - 1, posted_ns)
        if end_ns < start_ns:
            continue  # clocks of two machines disagree: an arrow back in time would be a lie
        for phase, rank, operation, time_ns in (
            ("s", message.source, message.send, start_ns),
            ("f", message.destination, message.recv, end_ns),
        ):
            arrow = {"name": "message", "cat": "message", "id": number, "ph": phase}
            thread = threads[rank][operation.index]
            arrow |= {"pid": _process(rank), "tid": thread, "ts": time_ns / 1000}
            # "e": the arrow ends at the event around it, not at the one that comes next.
            arrows.append(arrow | {"bp": "e"} if phase == "f" else arrow)
    return arrows


def _process(rank: int) -> int:
    return rank + 1


def _thread(rank: int, number: int) -> int:
    return 1000 * _process(rank) + number


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)
