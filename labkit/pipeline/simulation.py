"""Simulate a schedule: when each operation runs, the bubble, the memory in use.

A rank performs its row in order. An operation starts when its rank is free and the message that it
needs has arrived. A message arrives a time `send` after the end of its operation, and keeps no rank
busy. (Messages on one link do not slow each other: comm/throttle.py has links with queues.) Times
are in any unit.

A Timing is a schedule with its times, simulated or measured. It has the makespan, the busy time and
the bubble. There are two conventions for the bubble, the ranks' idle time: relative to the TOTAL
time of a step, or to the IDEAL time, in which they work. 1F1B with 4 stages and 8 microbatches has
a bubble of 3/11 of the total, which is 3/8 of the ideal.

`in_flight` and `peak_memory` return what a rank holds during a step:

    rank 0 of 4, 1F1B    F0 F1 F2 F3 B0 F4 B1 ...
    in flight            1  2  3  4  3  4  3          peak 4; GPipe's is m

This follows from the order alone, without times. A microbatch is in flight on a stage from its F to
its B, or to its W if the backward is split: W needs the inputs of the weights.

`in_time` writes a schedule as text with a column per unit of time, if all times are whole units:

    rank 0  F0 F1 F2 .  .  B0 B0 B1 B1 B2 B2
    rank 1  .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .          B takes two units; ".": the rank is idle
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from labkit import arguments
from labkit.pipeline.op import Kind, Op, Product, Schedule, consumer, lines, require_schedule
from labkit.pipeline.validation import executable_order, validate


class Span(NamedTuple):
    """An operation, or the message that it sends, with its start and end."""

    op: Op
    start: float
    end: float


@dataclass(frozen=True)
class Timing:
    """A schedule with its times: in seconds if measured, in the unit of the costs if simulated.

    rows[rank]: a rank's operations, in order. send[s]: the cost of a message between the stages s
    and s + 1; send is None if the times of messages are not known.
    """

    schedule: Schedule
    rows: tuple[tuple[Span, ...], ...]
    send: tuple[float, ...] | None = None

    @cached_property
    def sends(self) -> tuple[Span, ...]:
        """The messages between ranks. A message's op is the F or I whose product it carries."""
        num_stages, rank_of = self.schedule.num_stages, self.schedule.rank_of
        found: list[Span] = []
        if self.send is None:
            return ()
        for rank, span in self.spans():
            product = span.op.product
            there = consumer(product, num_stages)
            if there is not None and rank_of[there] != rank:
                arrives = span.end + self.send[min(product[1], there)]
                found.append(Span(Op(*product), span.end, arrives))
        return tuple(found)

    @cached_property
    def makespan(self) -> float:
        """The time from the first start to the last end."""
        first = min(row[0].start for row in self.rows if row)
        return max(row[-1].end for row in self.rows if row) - first

    @cached_property
    def busy(self) -> list[float]:
        """The time that each rank spends in operations."""
        return [sum(span.end - span.start for span in row) for row in self.rows]

    def bubble(self, relative_to: str = "total") -> float:
        """Return the ranks' idle time divided by all their time, or by their busy time ("ideal").

        Returns 0 for a schedule that takes no time. ValueError for another `relative_to`.
        """
        if relative_to not in ("total", "ideal"):
            raise ValueError(f"relative_to={relative_to!r}: say 'total' or 'ideal'")
        total, busy = self.makespan * len(self.rows), sum(self.busy)
        whole = total if relative_to == "total" else busy
        return (total - busy) / whole if whole else 0.0

    def spans(self) -> Iterator[tuple[int, Span]]:
        """Yield (rank, span) of all operations."""
        for rank, row in enumerate(self.rows):
            for span in row:
                yield rank, span


def measured(schedule: Schedule, spans_of: Sequence[Sequence[Span]]) -> Timing:
    """Return the measured `Step.spans` of all ranks as one Timing, which starts at 0.

    Ranks of one machine share its clock. ValueError for spans of another number of ranks, or of
    other operations than the schedule's.
    """
    require_schedule(schedule)
    if len(spans_of) != schedule.num_ranks:
        raise ValueError(
            f"spans of {len(spans_of)} ranks for a schedule of {schedule.num_ranks}: give the "
            "spans of each rank"
        )
    for rank, (spans, row) in enumerate(zip(spans_of, schedule.rows)):
        _require_spans_of(row, spans, rank)
    first = min(span.start for spans in spans_of for span in spans)
    rows = tuple(
        tuple(Span(op, start - first, end - first) for op, start, end in spans)
        for spans in spans_of
    )
    return Timing(schedule, rows)


def _require_spans_of(row: Sequence[Op], spans: Sequence[Span], rank: int) -> None:
    if [span.op for span in spans] != list(row):
        raise ValueError(
            f"rank {rank} measured {len(spans)} operations that are not, in order, the {len(row)} "
            "of the schedule; give the spans of one step, by rank"
        )


def plain(given: Any) -> Any:
    """Return a list, tuple, range, numpy array or tensor as a tuple, and other values unchanged.

    An array without dims becomes a number. Numbers are not checked.
    """
    if hasattr(given, "tolist"):  # numpy's and torch's numbers are then Python's
        given = given.tolist()
    return tuple(given) if isinstance(given, Sequence) and not _is_text(given) else given


def _is_text(given: object) -> bool:
    return isinstance(given, str | bytes)


PerStage = float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The time of each kind of operation, in any unit: one number, or a sequence of one per stage.

    A whole backward, B, takes input_gradient + weight_gradient. send: the time of one message
    between neighbouring stages on different ranks; a sequence has one per boundary, num_stages - 1.
    A sequence may be a numpy array or a tensor; it is kept as a tuple.
    """

    forward: PerStage = 1.0
    input_gradient: PerStage = 1.0
    weight_gradient: PerStage = 1.0
    send: PerStage = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, plain(getattr(self, each.name)))

    def of(self, kind: Kind, num_stages: int) -> list[float]:
        """Return an operation's cost on each stage. ValueError for a wrong number of costs."""
        if kind is Kind.B:
            halves = (self.of(Kind.I, num_stages), self.of(Kind.W, num_stages))
            return [i + w for i, w in zip(*halves)]
        name = {Kind.F: "forward", Kind.I: "input_gradient", Kind.W: "weight_gradient"}[kind]
        return _per_stage(name, getattr(self, name), num_stages)

    def of_sends(self, num_stages: int) -> list[float]:
        """Return the costs of messages by boundary: entry s is between the stages s and s + 1."""
        return _per_stage("send", self.send, num_stages - 1)


def _per_stage(name: str, cost: PerStage, count: int) -> list[float]:
    if isinstance(cost, tuple):
        if len(cost) != count:
            raise ValueError(f"{name} has {len(cost)} numbers, and {count} are needed")
        return [arguments.number(name, each, "0 or more", least=0) for each in cost]
    return [arguments.number(name, cost, "0 or more", least=0)] * count


def simulate(schedule: Schedule, costs: Costs = Costs()) -> Timing:
    """Return the times of every operation and message.

    ScheduleError for a schedule that is no training step. ValueError, TypeError for costs that are
    negative, no numbers, or of a wrong count.
    """
    order = executable_order(schedule)
    num_stages, rank_of = schedule.num_stages, schedule.rank_of
    duration = {kind: costs.of(kind, num_stages) for kind in Kind}
    send = costs.of_sends(num_stages)
    free = [0.0] * schedule.num_ranks  # the time from which each rank is free
    arrival: dict[Product, float] = {}  # the time at which the stage that needs it has it
    rows: list[list[Span]] = [[] for _ in schedule.rows]
    for rank, op in order:
        need = op.needs(num_stages)
        start = free[rank] if need is None else max(free[rank], arrival[need])
        end = free[rank] = start + duration[op.kind][op.stage]
        rows[rank].append(Span(op, start, end))
        product = op.product
        there = consumer(product, num_stages)
        if there is not None:
            is_local = rank_of[there] == rank
            arrival[product] = end if is_local else end + send[min(op.stage, there)]
    return Timing(schedule, tuple(map(tuple, rows)), tuple(send))


def in_flight(schedule: Schedule) -> list[int]:
    """Return by rank the most microbatches in flight at once. On two stages one counts twice.

    in_flight(plan(one_f_one_b, 4, 8)) == [4, 3, 2, 1]. ScheduleError for no training step.
    """
    return [round(peak) for peak in peak_memory(schedule)]


def peak_memory(
    schedule: Schedule,
    activation: float | Sequence[float] = 1.0,
    kept_for_weights: float = 1.0,
) -> list[float]:
    """Return by rank the peak memory of activations, in the unit of `activation`.

    activation: the memory of one microbatch on one stage: one number, or a list, array or tensor of
    one per stage. kept_for_weights: the share that W still needs after I (inputs of linear layers,
    but not attention's scores). ValueError for a negative number or a wrong count.
    """
    validate(schedule)
    sizes = _per_stage("activation", plain(activation), schedule.num_stages)
    change = {Kind.F: 1.0, Kind.B: -1.0, Kind.I: kept_for_weights - 1.0, Kind.W: -kept_for_weights}
    peaks = []
    for row in schedule.rows:
        held = peak = 0.0
        for op in row:
            held += change[op.kind] * sizes[op.stage]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


_ROUNDING = 1e-6  # in the unit of time


def in_time(timing: Timing, unit: float = 1.0, most: int = 40) -> str:
    """Return the schedule in time, a line per rank; "..." stands for columns after `most`.

    unit: the time of a column. ValueError for an operation that does not start and end at a
    multiple of it, or that takes no time.
    """
    begins = min(row[0].start for row in timing.rows if row)
    cells = [
        [(name, _columns(name, span, begins, unit)) for name, span in zip(names, row, strict=True)]
        for names, row in zip(lines(timing.schedule), timing.rows, strict=True)
    ]
    num_columns = max(columns.stop for row in cells for _, columns in row)
    grid = [["."] * num_columns for _ in cells]
    for rank, row in enumerate(cells):
        for name, columns in row:
            grid[rank][columns.start : columns.stop] = [name] * len(columns)
    width = max(len(cell) for row in grid for cell in row)
    margin = len(f"rank {len(grid) - 1}")
    shown = [row[:most] + ["..."] * (num_columns > most) for row in grid]
    return "\n".join(
        f"{f'rank {rank}'.ljust(margin)}  {' '.join(cell.ljust(width) for cell in row)}".rstrip()
        for rank, row in enumerate(shown)
    )


def _columns(name: str, span: Span, begins: float, unit: float) -> range:
    start = _column(span.start - begins, unit, f"the start of {name}")
    stop = _column(span.end - begins, unit, f"the end of {name}")
    if stop == start:
        raise ValueError(f"{name} takes no time and has no column; give it a cost of unit={unit}")
    return range(start, stop)


def _column(time: float, unit: float, what: str) -> int:
    column = round(time / unit)
    if abs(time / unit - column) > _ROUNDING:
        raise ValueError(
            f"{what}, at {time:g}, is no multiple of unit={unit:g}; give a unit that divides all "
            "times, or simulate with whole costs"
        )
    return column
