"""When does every operation run? An event simulation of a schedule, in any unit of time.

A rank performs its row in order. An operation starts when its rank is free and what it needs has
arrived; a message arrives `send` after its operation has ended, and keeps nobody busy meanwhile
(two messages over one link do not slow each other: a link with a queue is `throttling`'s subject).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from labkit import arguments
from labkit.pipeline.amounts import plain
from labkit.pipeline.op import Kind, Product, Schedule, consumer
from labkit.pipeline.timing import Span, Timing
from labkit.pipeline.validate import executable_order

PerStage = float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """How long an operation takes, in any unit: one number for all stages, or one per stage.

    A whole backward, B, takes input_gradient + weight_gradient. send: of one message between
    neighbouring stages on different ranks; a sequence has one per boundary, num_stages - 1.
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
        """By stage, of one kind of operation. Raises ValueError for a wrong number of costs."""
        if kind is Kind.B:
            halves = (self.of(Kind.I, num_stages), self.of(Kind.W, num_stages))
            return [i + w for i, w in zip(*halves)]
        name = {Kind.F: "forward", Kind.I: "input_gradient", Kind.W: "weight_gradient"}[kind]
        return _per_stage(name, getattr(self, name), num_stages)

    def of_sends(self, num_stages: int) -> list[float]:
        """By boundary: entry s is between the stages s and s + 1."""
        return _per_stage("send", self.send, num_stages - 1)


def _per_stage(name: str, cost: PerStage, count: int) -> list[float]:
    if isinstance(cost, tuple):
        if len(cost) != count:
            raise ValueError(f"{name} has {len(cost)} costs, and {count} are needed: one for each")
        return [arguments.number(name, each, "0 or more", least=0) for each in cost]
    return [arguments.number(name, cost, "0 or more", least=0)] * count


def simulate(schedule: Schedule, costs: Costs = Costs()) -> Timing:
    """The times of every operation and message. Raises ScheduleError for what is no step.

    ValueError, TypeError: costs that cannot be, or add up to more than a float holds; what is no
    Schedule (see `validate`).
    """
    order = executable_order(schedule)
    num_stages, rank_of = schedule.num_stages, schedule.rank_of
    duration = {kind: costs.of(kind, num_stages) for kind in Kind}
    send = costs.of_sends(num_stages)
    free = [0.0] * schedule.num_ranks
    arrival: dict[Product, float] = {}  # when the stage that waits for it has it
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
    # The longest sum that is taken of times: of all the ranks' time, for the bubble.
    if not math.isfinite(max(free) * len(free)):
        raise ValueError(
            "the times add up to more than a float holds: give costs in a larger unit of time"
        )
    return Timing(schedule, tuple(map(tuple, rows)), tuple(send))
