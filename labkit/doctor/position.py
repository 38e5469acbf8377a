"""The position of every rank, in words: the table below a verdict."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from labkit.comm import Operation
from labkit.comm.mismatch import WITHOUT_DATA
from labkit.comm.operation import known_as, ranks_named, verb
from labkit.doctor import sources
from labkit.doctor.halt import cure
from labkit.doctor.verdict import Stage
from labkit.doctor.waiting import View

Row = TypeVar("Row", bound=Hashable)


def doing(view: View) -> str:
    """Return what one rank does: `waits in all_reduce #4`, `returned after all_reduce #3`."""
    if view.is_stopped:
        return _stopped(view, _stands(view))
    if view.stage is Stage.STARTING:
        return "was still starting"
    if view.stage is Stage.IDLE:
        return "is idle (not in this cell)"
    if waiting := view.waits_in:
        return f"waits in {known_as(waiting)}"
    if view.stage is not Stage.RUNNING:
        return f"{view.stage.value} {_after(view)}"
    return f"{activity(view)} {_after(view)}"


def activity(view: View) -> str:
    """Return what a rank does that waits for no other: `computes`, or why it does not."""
    if view.halt is not None:
        return view.halt.description
    return "sleeps or blocks" if view.recorded.is_idle else "computes"


def _stopped(view: View, where: str) -> str:
    """`is stopped (SIGSTOP, or a debugger) in barrier #1; `kill -CONT 71` lets it go on`."""
    assert view.halt is not None
    return f"{view.halt.description}{where}{cure([view.halt])}"


def _stands(view: View) -> str:
    """Where a stopped rank is, by its journal alone; empty before its first operation."""
    if waiting := view.waits_in:
        return f" in {known_as(waiting)}"
    return "" if _last(view) is None else f" {_after(view)}"


def _after(view: View) -> str:
    """`after all_reduce #3`, or `before any operation`."""
    last = _last(view)
    num_foreign = view.recorded.enqueued.get("torch.distributed", 0)
    after = "before any operation"
    if last is not None:
        after = f"after {known_as(last)}"
    elif num_foreign:
        after = f"after {num_foreign} collective{'s' * (num_foreign > 1)} of torch.distributed"
    if last is not None and last.failed:
        after += " failed"
    return after


def place_of(view: View) -> str:
    """The reader's line that a rank is at, or was at when it last communicated; maybe empty."""
    if view.stage in (Stage.STARTING, Stage.IDLE):
        return ""
    if view.waits_in is None and view.stage is Stage.RUNNING and view.stack.site is not None:
        return sources.place(view.stack.site)
    operation = view.waits_in or _last(view)
    return "" if operation is None else sources.place(operation.origin)


def _last(view: View) -> Operation | None:
    """The last operation that the rank posted, be it torch's own."""
    foreign = [each for each in view.recorded.operations if each.waited_s is not None]  # no Group's
    known = [*view.operations[-1:], *foreign]
    return max(known, key=lambda each: each.posted_s, default=None)


def position_of(view: View) -> str:
    """Where one rank is: `waits in all_reduce #4 (cell 7, line 12)`."""
    place = place_of(view)
    if view.is_stopped and place:
        return _stopped(view, f"{_stands(view)} ({place})")
    return f"{doing(view)} ({place})" if place else doing(view)


def lines(said: Mapping[int, str]) -> str:
    """An indented line for each thing that is said of ranks, and who they are."""
    return "\n".join(
        f"  {ranks_named(ranks)} {plural(text, ranks)}" for text, ranks in _grouped(said).items()
    )


def table(views: Sequence[View]) -> str:
    """All ranks, those that do the same in one row: ranks, what they do, line, and with what."""
    rows = [
        (doing(view), place_of(view), "" if view.waits_in is None else _passed(view.waits_in))
        for view in views
    ]
    return grouped_table(rows)


def grouped_table(rows: Sequence[tuple[str, ...]]) -> str:
    """A table of what each rank does, and more about it; those with equal rows share one."""
    cells = [
        (ranks_named(ranks), plural(row[0], ranks), *row[1:])
        for row, ranks in _grouped(dict(enumerate(rows))).items()
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  " + "  ".join(f"{text:<{w}}" for text, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _grouped(rows: Mapping[int, Row]) -> dict[Row, list[int]]:
    ranks_at: dict[Row, list[int]] = {}
    for rank, row in rows.items():
        ranks_at.setdefault(row, []).append(rank)
    return ranks_at


def _passed(operation: Operation) -> str:
    """`sum of float32 (3,)`."""
    if operation.kind in WITHOUT_DATA or not operation.dtype:
        return ""
    what = f"{operation.dtype} {operation.shape}"
    return f"{operation.reduce} of {what}" if operation.reduce else what


def plural(where: str, ranks: Sequence[int]) -> str:
    """`waits` becomes `wait` for several ranks, and so on."""
    where = where.replace("sleeps or blocks", "sleep or block") if len(ranks) > 1 else where
    first, _, rest = where.partition(" ")
    inflected = ("waits", "computes", "was", "is")
    return f"{verb(ranks, first)} {rest}".rstrip() if first in inflected else where
