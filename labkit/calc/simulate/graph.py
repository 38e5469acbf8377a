"""A pipeline's step as a graph: what each piece of work waits for, in an order that can be run.

    F of stage s, microbatch i     waits for    the work before it on its rank
                                                F of stage s - 1, i: a message
    B of stage s, i                waits for    the work before it on its rank
                                                B of stage s + 1, i: a message; the last stage: none

The same graph serves all replicas of a layout; only their seconds differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from labkit.calc.simulate.orders import Work, order


@dataclass(frozen=True)
class Graph:
    """Entry n of each tuple is of the n-th piece of work: all that it waits for comes before it.

    A rank of the pipeline is called a cell here: with tp, cp and ep it stands for several ranks.
    """

    num_cells: int
    work: tuple[Work, ...]
    cell: tuple[int, ...]
    before: tuple[int, ...]
    """The work before it in its cell; -1: none."""
    need: tuple[int, ...]
    """The work in another cell (or another stage of its own) whose product it takes; -1: none."""
    pair: tuple[int, ...]
    """Which two cells that product travels between, an entry of `pairs`; -1: it does not travel."""
    pairs: tuple[tuple[int, int], ...]
    """Neighbouring cells, the lower first."""
    last: tuple[int, ...]
    """By cell: its last work."""
    first_forward: tuple[int, ...]
    """By stage."""
    last_backward: tuple[int, ...]
    """By stage."""

    def stages_of(self, cell: int) -> range:
        """The stages that a cell holds."""
        return range(cell, len(self.first_forward), self.num_cells)


@lru_cache(maxsize=8)
def graph(schedule: str, num_cells: int, num_microbatches: int, virtual: int = 1) -> Graph:
    """Of a schedule. ValueError for one that does not exist, see `orders.order`."""
    rows = [order(schedule, n, num_cells, num_microbatches, virtual) for n in range(num_cells)]
    work, cell = _runnable(rows, num_cells * virtual)
    place = {each: n for n, each in enumerate(work)}
    needs = [_need(each, num_cells * virtual) for each in work]
    need = [-1 if each is None else place[each] for each in needs]
    ends = [(cell[n], cell[other]) for n, other in enumerate(need)]
    pairs = sorted({(min(e), max(e)) for e, n in zip(ends, need) if n >= 0 and e[0] != e[1]})
    at = {pair: n for n, pair in enumerate(pairs)}
    before, last = [], [-1] * num_cells
    for n, each in enumerate(cell):
        before.append(last[each])
        last[each] = n
    firsts = [place[Work("F", stage, 0)] for stage in range(num_cells * virtual)]
    lasts = {each.stage: n for n, each in enumerate(work) if each.kind == "B"}
    return Graph(
        num_cells,
        tuple(work),
        tuple(cell),
        tuple(before),
        tuple(need),
        tuple(at[min(e), max(e)] if n >= 0 and e[0] != e[1] else -1 for e, n in zip(ends, need)),
        tuple(pairs),
        tuple(last),
        tuple(firsts),
        tuple(lasts[stage] for stage in range(num_cells * virtual)),
    )


def _need(work: Work, num_stages: int) -> Work | None:
    there = work.stage - 1 if work.kind == "F" else work.stage + 1
    return work._replace(stage=there) if 0 <= there < num_stages else None


def _runnable(rows: list[tuple[Work, ...]], num_stages: int) -> tuple[list[Work], list[int]]:
    """All work, each after what it needs, and the cell of each: rows run as far as they can."""
    work: list[Work] = []
    cells: list[int] = []
    done: set[Work] = set()
    waits: dict[Work, int] = {}  # for what: the cell that cannot go on without it
    place = [0] * len(rows)
    can_run = list(range(len(rows)))
    while can_run:
        cell = can_run.pop()
        for each in rows[cell][place[cell] :]:
            need = _need(each, num_stages)
            if need is not None and need not in done:
                waits[need] = cell
                break
            work.append(each)
            cells.append(cell)
            done.add(each)
            place[cell] += 1
            if each in waits:
                can_run.append(waits.pop(each))
    assert len(work) == sum(map(len, rows)), "an order is blocked"
    return work, cells
