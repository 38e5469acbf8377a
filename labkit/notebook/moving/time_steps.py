"""The steps of a schedule, or of a window of a run, as data for bars.mjs."""

from typing import Any

from labkit.calc.units import bytes_text
from labkit.comm.operation import Operation
from labkit.pipeline import Kind, Timing
from labkit.profile.activity import Span, clipped, doing, in_flight, rows_without_overlap
from labkit.viz import style
from labkit.viz.journals import timelines_of
from labkit.viz.schedule_parts import operation_colour

MAX_STEPS, MAX_RANKS = 120, 8
_MAX_PLACES = 6  # operations in flight together share so many rows
_WORDS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
}


def schedule_data(timing: Timing, title: str) -> dict[str, Any]:
    """Return a row for each rank and a step for each time at which an operation begins or ends.

    ValueError for more than 8 ranks or 120 such times: a measured schedule has too many.
    """
    schedule, first = timing.schedule, min(row[0].start for row in timing.rows if row)
    times = sorted({round(t - first, 6) for _, s in timing.spans() for t in (s.start, s.end)})
    if schedule.num_ranks > MAX_RANKS or len(times) > MAX_STEPS:
        raise ValueError(
            f"{schedule.num_ranks} ranks and {len(times)} moments: a schedule that can be followed "
            f"has {MAX_RANKS} ranks and {MAX_STEPS} moments or fewer; simulate it with equal costs"
        )
    per_rank = len(schedule.stages_of(0))
    rows: list[dict[str, Any]] = [
        {"name": f"rank {rank}", "bars": []} for rank in range(schedule.num_ranks)
    ]
    for rank, span in timing.spans():
        place = span.op.stage // schedule.num_ranks
        rows[rank]["bars"].append(
            {
                "start": span.start - first,
                "end": span.end - first,
                "colour": operation_colour(span.op.kind, place, per_rank),
                "text": str(span.op.microbatch),
            }
        )
    steps = [
        {
            "at": at,
            "say": _at_work(timing, at + first, before + first),
            "notes": _held(timing, at + first),
        }
        for before, at in zip([0.0, *times], times)
    ]
    return {
        "title": title,
        "rows": rows,
        "end": times[-1],
        "unit": "in the unit of the costs",
        "heading": "in flight",
        "steps": steps,
        "step_ms": 900,
    }


def _at_work(timing: Timing, now: float, before: float) -> str:
    if now <= before:
        return "Start: every rank waits for its first operation. Right: microbatches that it holds."
    middle, parts = (now + before) / 2, []
    for rank, row in enumerate(timing.rows):
        busy = [span.op for span in row if span.start < middle < span.end]
        words = [f"{_WORDS[op.kind]} of {op.microbatch}" for op in busy] or ["idle"]
        parts.append(f"rank {rank} {words[0]}")
    return f"Until {now:g}: {', '.join(parts)}."


def _held(timing: Timing, now: float) -> list[str]:
    """Return for each rank how many (microbatch, stage) began forward and have not ended."""
    notes = []
    for row in timing.rows:
        began = {
            (s.op.microbatch, s.op.stage) for s in row if s.op.kind == Kind.F and s.start < now
        }
        last: dict[tuple[int, int], float] = {}
        for span in row:
            if span.op.kind != Kind.F:
                key = (span.op.microbatch, span.op.stage)
                last[key] = max(span.end, last.get(key, 0.0))
        ended = {key for key, end in last.items() if end <= now + 1e-9}
        notes.append(str(len(began - ended)))
    return notes


def window_data(
    run: Any, between: tuple[float, float], rank: int, kinds: tuple[str, ...], title: str
) -> dict[str, Any]:
    """Return the lanes of viz.timeline, and a step for each operation that `rank` posts or takes.

    ValueError for an empty window, no operation in it, and more than 8 ranks or 120 steps.
    """
    timelines, (start_s, end_s) = timelines_of(run), between
    unit = style.time_unit(end_s - start_s)
    scale = unit.per_second
    events = _events(timelines[rank].operations, between, kinds)
    if not 1 <= len(events) < MAX_STEPS or len(timelines) > MAX_RANKS:
        raise ValueError(
            f"{len(events)} operations are posted or taken by rank {rank} between {start_s:g} and "
            f"{end_s:g} s on {len(timelines)} ranks: 1 to {MAX_STEPS - 1}, on at most {MAX_RANKS}"
        )
    lanes = [
        [clipped(find(each, end_s), start_s, end_s) for find in (doing, in_flight)]
        for each in timelines
    ]
    regions = style.region_colours([s.label for main, _ in lanes for s in main if not s.operation])
    rows = []
    for number, (main, flight) in enumerate(lanes):
        bars = [_bar(span, start_s, scale, regions) for span in main]
        places = rows_without_overlap(flight, _MAX_PLACES)
        thin = {"lane": 1, "of": max(places, default=0) + 1}
        for span, place in zip(flight, places):
            bars.append(_bar(span, start_s, scale, regions) | thin | {"place": place})
        rows.append({"name": f"rank {number}", "bars": bars})
    moments = [(start_s, "Start of the window. Thin bars are operations in flight.", 0), *events]
    steps = []
    for at_s, say, _ in moments:
        said = f"{(at_s - start_s) * scale:.3g} {unit.name}: {say}" if at_s > start_s else say
        notes = [_in_flight_at(each.operations, at_s, kinds) for each in timelines]
        steps.append({"at": (at_s - start_s) * scale, "say": said, "notes": notes})
    steps.append(steps[-1] | {"at": (end_s - start_s) * scale, "say": "The end of the window."})
    return {
        "title": title,
        "rows": rows,
        "end": (end_s - start_s) * scale,
        "unit": unit.name,
        "heading": "in flight",
        "steps": steps,
    }


def _bar(span: Span, start_s: float, scale: float, regions: dict[str, str]) -> dict[str, Any]:
    is_operation = span.operation is not None
    colour = style.kind_family(span.label).colour if is_operation else regions[span.label]
    text = span.label if is_operation or span.label != style.OTHER_WORK else ""
    times = {"start": (span.start_s - start_s) * scale, "end": (span.end_s - start_s) * scale}
    return times | {"colour": colour, "text": text}


def _events(
    operations: list[Operation], between: tuple[float, float], kinds: tuple[str, ...]
) -> list[tuple[float, str, int]]:
    found = []
    for number, operation in enumerate(operations):
        if kinds and operation.kind not in kinds:
            continue
        name = f"{operation.kind} of {operation.label or operation.name}"
        size = bytes_text(operation.payload_bytes)
        moments = [(operation.posted_s, f"this rank posts the {name}, {size}.")]
        if operation.done_s is not None:
            moments.append((operation.done_s, f"this rank takes the result of the {name}."))
        found += [(at, say, number) for at, say in moments if between[0] <= at <= between[1]]
    return sorted(found)


def _in_flight_at(operations: list[Operation], at_s: float, kinds: tuple[str, ...]) -> str:
    """Return how many operations are posted at this time and not taken."""
    flying = [
        each
        for each in operations
        if each.posted_s <= at_s and (each.done_s is None or each.done_s > at_s)
    ]
    return str(sum(not kinds or each.kind in kinds for each in flying))
