"""Check that a schedule is a training step, and find an order in which it can be performed.

In a training step every stage is on one rank. Each stage takes each microbatch once forward (F) and
once back (B, or I and W). No operation precedes one that it needs, and no ranks wait in a cycle.

A rank performs its row in order, and waits if a message has not arrived. Sends do not block, as in
`execute`. If sends block until they are received, more orders deadlock: see messages.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from labkit.pipeline.op import Kind, Op, Product, Schedule, around, cell_of, require_schedule


class ScheduleError(ValueError):
    """A schedule that is no training step. The message ends with the schedule, one cell marked.

    rank, index: the marked cell; index is the row's length if an operation is missing.
    """

    def __init__(self, reason: str, schedule: Schedule, rank: int, index: int) -> None:
        super().__init__(f"{reason}\n{around(schedule, {rank: index})}")
        self.reason, self.rank, self.index = reason, rank, index


def validate(schedule: Schedule) -> None:
    """Raise ScheduleError for a schedule that is no training step, with its first wrong cell.

    TypeError for anything but a Schedule with rows of Ops, ValueError for one without rows, or with
    a count below 1.
    """
    for _ in executable_order(schedule):
        pass


def executable_order(schedule: Schedule) -> Iterator[tuple[int, Op]]:
    """Yield (rank, operation) in an order in which all can be performed.

    Raises as `validate`: for a wrong cell at once, for a deadlock when no rank can continue. Time:
    linear in the number of operations.
    """
    require_schedule(schedule)
    if not schedule.rows:
        raise ValueError("schedule.rows=(): there is no rank; give one row for each")
    _require_each_once(schedule)
    return _performed(schedule)


def _performed(schedule: Schedule) -> Iterator[tuple[int, Op]]:
    rows, num_stages = schedule.rows, schedule.num_stages
    position = [0] * len(rows)
    done: set[Product] = set()
    waiting: dict[Product, int] = {}  # product -> the rank whose next operation needs it
    ready = deque(range(len(rows)))
    while ready:
        rank = ready.popleft()
        row = rows[rank]
        while position[rank] < len(row):
            op = row[position[rank]]
            need = op.needs(num_stages)
            if need is not None and need not in done:
                waiting[need] = rank
                break
            position[rank] += 1
            product = op.product
            done.add(product)
            yield rank, op
            if product in waiting:
                ready.append(waiting.pop(product))
    if any(position[rank] < len(row) for rank, row in enumerate(rows)):
        raise _deadlock(schedule, position, done)


# The products of each kind of operation, and the product of its own stage that it needs.
_YIELDS = {
    Kind.F: (Kind.F,),
    Kind.B: (Kind.I, Kind.W),
    Kind.I: (Kind.I,),
    Kind.W: (Kind.W,),
}
_NEEDS = {Kind.F: None, Kind.B: Kind.F, Kind.I: Kind.F, Kind.W: Kind.I}
_Seen = dict[Kind, dict[tuple[int, ...], Kind]]  # product -> (stage, microbatch) -> its maker


def _require_each_once(schedule: Schedule) -> None:
    m, num_stages = schedule.num_microbatches, schedule.num_stages
    rank_of = schedule.rank_of
    seen: _Seen = {Kind.F: {}, Kind.I: {}, Kind.W: {}}
    for rank, row in enumerate(schedule.rows):
        for index, op in enumerate(row):
            kind, stage, microbatch = op
            cell, own = (stage, microbatch), _NEEDS[kind]
            if not (0 <= stage < num_stages and 0 <= microbatch < m and rank_of[stage] == rank):
                reason = _why_impossible(op, schedule, rank)
            elif any(cell in seen[product] for product in _YIELDS[kind]):
                reason = _why_again(op, seen)
            elif own is not None and cell not in seen[own]:
                need = (own, stage, microbatch)
                reason = f"rank {rank} has {op} before {_shown(need)}, which it needs"
            else:
                for product in _YIELDS[kind]:
                    seen[product][cell] = kind
                continue
            raise ScheduleError(reason, schedule, rank, index)
    if sum(map(len, seen.values())) < 3 * m * num_stages:
        raise _missing(schedule, seen)


def _why_impossible(op: Op, schedule: Schedule, rank: int) -> str:
    if not 0 <= op.stage < schedule.num_stages:
        return f"{op} is of stage {op.stage}; there are 0 to {schedule.num_stages - 1}"
    if not 0 <= op.microbatch < schedule.num_microbatches:
        last = schedule.num_microbatches - 1
        return f"{op} is of microbatch {op.microbatch}; there are 0 to {last}"
    return (
        f"{op} of stage {op.stage} is on rank {rank}, and rank {schedule.rank_of[op.stage]} holds "
        "that stage: its weights are in one place"
    )


def _why_again(op: Op, seen: _Seen) -> str:
    again = next(product for product in _YIELDS[op.kind] if op[1:] in seen[product])
    maker = seen[again][op[1:]]
    if maker is op.kind:
        return f"{op} of stage {op.stage} is there twice"
    what = "the input's gradient" if again is Kind.I else "the weights' gradients"
    return f"{op} of stage {op.stage} computes {what} again: {maker}{op.microbatch} did"


def _missing(schedule: Schedule, seen: _Seen) -> ScheduleError:
    stage, microbatch, kind = next(
        (stage, microbatch, kind)
        for stage in range(schedule.num_stages)
        for microbatch in range(schedule.num_microbatches)
        for kind in (Kind.F, Kind.I, Kind.W)
        if (stage, microbatch) not in seen[kind]
    )
    if kind is Kind.I:
        kind = Kind.B  # neither of its halves is there: a W would have been before its I
    rank = schedule.rank_of.get(stage, min(stage, schedule.num_ranks - 1))
    return ScheduleError(
        f"{kind}{microbatch} of stage {stage} is missing: every stage takes each of the "
        f"{schedule.num_microbatches} microbatches forward (F) and back (B, or I and W)",
        schedule,
        rank,
        len(schedule.rows[rank]),
    )


def _deadlock(schedule: Schedule, position: list[int], done: set[Product]) -> ScheduleError:
    """Return an error that names the ranks that wait in a cycle."""
    waits: dict[int, tuple[Op, Product, int]] = {}  # rank -> operation, its need, of rank
    for rank, row in enumerate(schedule.rows):
        if position[rank] < len(row):
            op = row[position[rank]]
            need = op.needs(schedule.num_stages)
            assert need is not None and need not in done
            waits[rank] = (op, need, schedule.rank_of[need[1]])
    rank, path = min(waits), list[int]()
    while rank not in path:
        path.append(rank)
        rank = waits[rank][2]
    cycle = path[path.index(rank) :]
    if len(cycle) == 1:
        op, need, _ = waits[rank]
        reason = f"rank {rank} has {op} of stage {op.stage} before {_shown(need)} of stage "
        return ScheduleError(f"{reason}{need[1]}, which it needs", schedule, rank, position[rank])
    written = cell_of(schedule)
    waiting = "; ".join(
        f"rank {each} waits at {written(waits[each][0])} for "
        f"{_shown(waits[each][1], written)} of rank {waits[each][2]}"
        for each in cycle
    )
    return ScheduleError(f"a deadlock: {waiting}", schedule, cycle[0], position[cycle[0]])


def _shown(product: Product, written: Callable[[Op], str] = str) -> str:
    """Return a product as text. The input's gradient is "B0 or I0": either operation makes it."""
    kind, stage, microbatch = product
    makers = (Kind.B, Kind.I) if kind is Kind.I else (kind,)
    return " or ".join(written(Op(maker, stage, microbatch)) for maker in makers)
