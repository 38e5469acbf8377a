"""Grade the exercises about pipeline schedules: read rows of cells, check them and time them.

The function under test returns the row of one rank. The rows of all ranks together are a schedule:
rows[rank] = ["F0", "F1", "B0", ...]. They are not compared with the solution's rows. A schedule is
right if it is a valid training step, and if it takes no more time and memory than allowed.

labkit.pipeline is imported inside functions: ranks that run code under test import this module,
and labkit.pipeline is closed to them.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.comm.operation import listed
from labkit.grade.differences import shown
from labkit.grade.grader import Case, Draw, Mistake, Observed, Patch, Questions
from labkit.grade.verdict import Finding, Outcome

Rows = list[list[str]]
Cost = tuple[float, float, float, float]
"""Duration of F, of I, of W and of a message. A whole backward takes I + W."""
FORWARD_AND_BACKWARD: tuple[Cost, ...] = ((1, 0.5, 0.5, 0), (1, 1, 1, 0), (4, 1, 1, 0))

_IDLE = re.compile(r"[\s._-]*|idle|none|wait|bubble", re.IGNORECASE)
_HALVES = re.compile(r",? or I( and W|[\d@]+)")
_MOST_CELLS = 100_000
_WHY = {
    "returns something else than a list of cells": "The function is asked for the row of one rank: "
    "a list of cells, such as 'F0' and 'B0', or a generator of them.",
    "has cells for waiting": "A row is an order, without times. When a rank waits follows from it.",
    "a cell of another kind": "The contract says which letters this schedule is made of, and "
    "whether a cell names its stage, as F0@2 does.",
    "a stage of another rank": "Stage s is on rank s mod p. Only that rank has its weights.",
    "a backward before the last forward": "In GPipe all forwards of a rank come first.",
    "ranks wait for each other": "Start at a rank that waits, go to the rank that it waits for and "
    "so on: you return to the rank where you started.",
    "leaves an operation out": "Every stage takes each microbatch forward and backward in a step.",
    "an operation before one that it needs": "A backward uses what the forward of its microbatch "
    "has kept, and W uses gradients that I computes.",
    "a cell that does not exist": "Microbatches are 0 to m - 1, and there may be fewer of them "
    "than ranks. Stages are numbered over the whole model.",
    "an operation twice": "Each microbatch passes through each stage once, forward and backward.",
    "holds too many activations": "Activations are held from a microbatch's forward to the end of "
    "its backward. The step would take no longer with fewer of them.",
    "a larger bubble than needed": "Some rank waits for a result that could be there earlier. Look "
    "for the first dot that is not needed, and for what the next cell needs.",
}
# Names by words in the message of labkit.pipeline.validate.
_NAMES = {
    "deadlock": "ranks wait for each other",
    "missing": "leaves an operation out",
    "which it needs": "an operation before one that it needs",
    "there are 0 to": "a cell that does not exist",
    "": "an operation twice",
}


def pipeline(p: int, m: int, *virtual: int) -> Case:
    """Return a case: p ranks, m microbatches and, if the function takes it, stages per rank."""
    label = f"{p} rank{'s' * (p > 1)}, {m} microbatch{'es' * (m > 1)}"
    return Case(label + "".join(f", {v} stages on each" for v in virtual), p, m, *virtual)


def drawn_pipelines(draw: Draw) -> list[Case]:
    """Draw cases, a small one first: one rank, one microbatch, fewer microbatches than ranks, and
    large ones."""
    rng, square = draw.rng, draw.rng.randrange(3, 6)
    sizes = [(rng.randrange(3, 5), rng.randrange(6, 9)), (2, rng.randrange(4, 7))]
    sizes += [(1, rng.randrange(2, 9)), (rng.randrange(3, 9), 1), (1, 1)]
    sizes += [(rng.randrange(5, 9), rng.randrange(2, 5)), (square, square), (square, square + 1)]
    sizes += [(square + 1, square), (8, rng.randrange(9, 17))]
    sizes += [(rng.randrange(3, 8), rng.randrange(8, 17))]
    return list(itertools.starmap(pipeline, sizes))


def all_rows(watch: Any, args: tuple[Any, ...]) -> Any:
    """Call the function under test for each rank, and return the rows."""
    return [as_list(watch.function(rank, *args)) for rank in range(args[0])]


def as_list(row: Any) -> Any:
    """Return a function's result, as a list if it is an iterable of cells."""
    if isinstance(row, Iterable) and not isinstance(row, str):
        return list(itertools.islice(row, _MOST_CELLS))
    return row


def num_first_forwards(row: Sequence[str]) -> int:
    """Return the number of forwards before the first other cell."""
    return len([*itertools.takewhile(lambda cell: str(cell).startswith("F"), row)])


def starts_with(*counts: Callable[..., int]) -> Callable[[Observed], bool]:
    """Return a predicate: on every rank r, count(r, p, m, ...) forwards come before a backward.

    The count is cut to the number of forwards that the rank has. With several `counts`, one of them
    must fit all ranks.
    """

    def seen(s: Observed) -> bool:
        p, m, virtual = (*s.args, 1)[:3]
        wanted = [
            [max(1, min(count(rank, *s.args), m * virtual)) for rank in range(p)]
            for count in counts
        ]
        return p > 1 and [*map(num_first_forwards, s.y)] in wanted

    return seen


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules for schedules of one exercise."""

    time: Callable[..., float]
    """time(cost, p, m, ...) returns the longest time that a step may take."""
    memory: Callable[..., list[int]] | None = None
    """memory(p, m, ...) returns the most activations that each rank may hold."""
    kinds: str = "FB"
    costs: Sequence[Cost] = FORWARD_AND_BACKWARD
    all_forwards_first: bool = False
    names_stages: bool = False

    def grader(self, mistakes: Sequence[Mistake], **others: Any) -> Questions:
        """Return the grader of a function that returns one rank's row. others: cases, shown."""
        nothing = Finding(Outcome.PASSED, "", "")
        return Questions(
            mistakes=mistakes,
            right=lambda p, *others: [[] for _ in range(p)],  # only the number of rows is used
            same=lambda got, right, case: self.invalid(got, case.args) is None,
            call=all_rows,
            closed=("labkit.pipeline",),
            describe=lambda s: (self.found(s) or nothing).first_seen,
            picture=lambda s: (self.found(s) or nothing).picture,
            fault=lambda s: (
                (found := self.found(s))
                and dataclasses.replace(found, first_seen=f"{s.label}: {found.first_seen}")
            ),
            **others,
        )

    def slow(
        self,
        name: str,
        why: str,
        made_by: Patch | Sequence[Patch],
        when: Callable[[Observed], bool],
        hint: int = 2,
    ) -> Mistake:
        """Return a mistake whose schedules are valid, but take too long or hold too much."""
        is_slow = lambda s: when(s) and self.found(s) is not None  # noqa: E731
        return Mistake(name, why, made_by, over_budget=is_slow, hint=hint)

    def found(self, s: Observed) -> Finding | None:
        """Return the first mistake of a schedule; None if it follows all rules."""
        return self.invalid(s.y, s.args) or self.over(s.y, s.args)

    def invalid(self, rows: Any, args: tuple[int, ...]) -> Finding | None:
        """Return the first wrong cell, missing cell or deadlock; None for a valid training step."""
        from labkit.pipeline import ScheduleError, validate
        from labkit.pipeline.op import marked

        name, seen, mark = self._wrong_cell(rows) or ("", "", {})
        if not name:
            try:
                validate(_schedule_of(rows, args))
                return None
            except ScheduleError as error:
                name = next(name for words, name in _NAMES.items() if words in error.reason)
                seen = error.reason if "I" in self.kinds else _HALVES.sub("", error.reason)
                mark = {error.rank: error.index}
        picture = marked(rows, mark) if mark else ""
        return Finding(Outcome.WRONG, name, _WHY[name], seen, 3, picture=picture)

    def _wrong_cell(self, rows: Any) -> tuple[str, str, dict[int, int]] | None:
        """Return the first cell that this exercise does not allow there: (name, text, marks)."""
        stage = r"@(\d+)" if self.names_stages else r"(?:@(\d+))?"
        for rank, row in enumerate(rows):
            if not isinstance(row, list) or any(isinstance(cell, list | tuple) for cell in row):
                seen = f"for rank {rank} the function returns {shown(row)}"
                return "returns something else than a list of cells", seen, {}
            for index, cell in enumerate(row):
                written = re.fullmatch(rf"[{self.kinds}]\d+{stage}", str(cell))
                if _IDLE.fullmatch(str(cell)):
                    name = "has cells for waiting"
                elif written is None or not isinstance(cell, str):
                    name = "a cell of another kind"
                elif int(written[1] or rank) % len(rows) != rank:
                    name = "a stage of another rank"
                elif self.all_forwards_first and cell[0] == "F" and index > num_first_forwards(row):
                    name = "a backward before the last forward"
                else:
                    continue
                return name, f"cell {index} of rank {rank} is {cell!r}", {}
        return None

    def over(self, rows: Rows, args: tuple[int, ...]) -> Finding | None:
        """Return the finding for a valid schedule that holds too much, or else takes too long."""
        from labkit.pipeline import Costs, in_flight, simulate

        schedule = _schedule_of(rows, args)
        held = in_flight(schedule)
        most = held if self.memory is None else self.memory(*args)
        if any(got > may for got, may in zip(held, most, strict=True)):
            seen = f"by rank, {held} activations are held at once; allowed are {most}"
            return _too_much("holds too many activations", seen, simulate(schedule))
        names = ("forward", "input_gradient", "weight_gradient", "send")
        for cost in self.costs:
            timing = simulate(schedule, Costs(**dict(zip(names, cost, strict=True))))
            if (took := timing.makespan) > (enough := self.time(cost, *args)):
                seen = f"with {self._in_words(cost)} the step takes {took:g}; {enough:g} are enough"
                return _too_much("a larger bubble than needed", seen, timing)
        return None

    def _in_words(self, cost: Cost) -> str:
        f, i, w, message = cost
        values = {"F": f, "B": i + w, "I": i, "W": w}
        durations = [f"{kind} = {values[kind]:g}" for kind in self.kinds]
        return listed([*durations, *[f"{message:g} per message"] * (message > 0)])


def _too_much(name: str, seen: str, timing: Any) -> Finding:
    """Return the finding for a valid schedule over the budget, with its picture in time."""
    from labkit.pipeline import in_time

    picture = in_time(timing, most=24)
    return Finding(Outcome.OVER_BUDGET, name, _WHY[name], seen, 2, picture=picture)


def _schedule_of(rows: Rows, args: tuple[int, ...]) -> Any:
    """Return the rows as a Schedule of labkit.pipeline."""
    from labkit.pipeline import parse

    p, m, virtual = (*args, 1)[:3]
    schedule = parse(map(" ".join, rows))
    return dataclasses.replace(schedule, num_stages=p * virtual, num_microbatches=m)
