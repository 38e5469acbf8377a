"""What the four exercises about pipeline schedules share: reading, checking and timing of rows.

The function under test returns the row of one rank. The rows of all ranks together are a schedule:
rows[rank] = ["F0", "F1", "B0", ...]. They are not compared with the solution's rows. A schedule is
right if it is a valid training step, and if it takes no more time and memory than allowed.

labkit.pipeline is imported inside functions: ranks that run code under test import this module too.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.comm.words import listed
from labkit.grade.grader import Case, Draw, Mistake, Observed, Patch, Questions
from labkit.grade.outcome import Finding, Outcome

Rows = list[list[str]]
Cost = tuple[float, float, float, float]
"""Duration of F, of I, of W and of a message. A whole backward takes I + W."""
FORWARD_AND_BACKWARD: tuple[Cost, ...] = ((1, 0.5, 0.5, 0), (1, 1, 1, 0), (4, 1, 1, 0))

_CELL = re.compile(r"([FBIW])(-?\d+)(?:@(-?\d+))?")
_IDLE = re.compile(r"[\s._-]*|idle|none|wait|bubble", re.IGNORECASE)
_COMPUTES = {"F": "F", "B": "IW", "I": "I", "W": "W"}
_NEEDS = {"B": "F", "I": "F", "W": "I"}
_MOST_CELLS = 100_000

_WHY = {
    "returns something else than a list of cells": "A row is a list of cells, such as 'F0' and "
    "'B0', or a generator of them.",
    "returns the rows of all ranks": "The function is asked for the row of one rank.",
    "has cells for waiting": "A row is an order, without times. When a rank waits follows from it.",
    "a cell of another kind": "The contract says which letters this schedule is made of.",
    "cells without a stage": "A rank holds several stages, so each cell names its stage: F0@2.",
    "a microbatch that does not exist": "Microbatches are 0 to m - 1, and there may be fewer "
    "of them than ranks.",
    "a stage that does not exist": "Stages are numbered over the whole model: 0 to p v - 1.",
    "a stage of another rank": "Stage s is on rank s mod p. Only that rank has its weights.",
    "an operation twice": "Each microbatch passes through each stage once, forward and backward.",
    "a backward before its forward": "A backward uses what the forward of its microbatch has kept.",
    "W before I": "W uses gradients that the I of the same microbatch computes.",
    "a backward before the last forward": "In GPipe all forwards of a rank come first.",
    "leaves an operation out": "Every stage takes each microbatch forward and backward in a step.",
    "ranks wait for each other": "Start at a rank that waits, go to the rank that it waits for and "
    "so on: you come back to the rank where you started.",
}


def pipeline(p: int, m: int, *virtual: int) -> Case:
    """A case: p ranks, m microbatches and, where the function is given it, stages per rank."""
    label = f"{p} rank{'s' * (p > 1)}, {m} microbatch{'es' * (m > 1)}"
    return Case(label + "".join(f", {v} stages on each" for v in virtual), p, m, *virtual)


def drawn_pipelines(draw: Draw) -> list[Case]:
    """Small first; one rank, one microbatch, fewer microbatches than ranks, and large ones."""
    rng, square = draw.rng, draw.rng.randrange(3, 6)
    sizes = [(rng.randrange(3, 5), rng.randrange(6, 9)), (2, rng.randrange(4, 7))]
    sizes += [(1, rng.randrange(2, 9)), (rng.randrange(3, 9), 1), (1, 1)]
    sizes += [(rng.randrange(5, 9), rng.randrange(2, 5)), (square, square), (square, square + 1)]
    sizes += [(square + 1, square), (8, rng.randrange(9, 17))]
    sizes += [(rng.randrange(3, 8), rng.randrange(8, 17))]
    return [pipeline(p, m) for p, m in sizes]


def all_rows(watch: Any, args: tuple[Any, ...]) -> Any:
    """Ask for the row of each rank."""
    return [as_list(watch.function(rank, *args)) for rank in range(args[0])]


def as_list(row: Any) -> Any:
    """What a function returned, as a list if it is an iterable of cells."""
    if isinstance(row, Iterable) and not isinstance(row, str):
        return list(itertools.islice(row, _MOST_CELLS))
    return row


def microbatches(row: Sequence[str], kind: str) -> list[int]:
    """The microbatches of a row's cells of one kind, in order: of "B" in F0 F1 B1 they are [1]."""
    return [int(cell[1:].split("@")[0]) for cell in row if cell[0] == kind]


def forwards_first(rows: Rows) -> list[int]:
    """By rank, the number of forwards before the first other cell."""
    return [len([*itertools.takewhile(lambda cell: cell[0] == "F", row)]) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a schedule of one exercise must keep to."""

    time: Callable[..., float]
    """time(cost, p, m, ...): the longest step allowed."""
    memory: Callable[..., list[int]] | None = None
    """memory(p, m, ...): by rank, the most activations that it may hold."""
    kinds: str = "FB"
    costs: Sequence[Cost] = FORWARD_AND_BACKWARD
    all_forwards_first: bool = False
    names_stages: bool = False

    def grader(self, name: str, mistakes: Sequence[Mistake], **others: Any) -> Questions:
        """The grader of a function that returns one rank's row. others: cases, shown."""
        return Questions(
            name=name,
            mistakes=mistakes,
            right=lambda p, *others: [[] for _ in range(p)],  # only its form is looked at
            same=lambda got, right, case: self.invalid(got, case.args) is None,
            call=all_rows,
            num_arguments=4 if self.names_stages else 3,
            closed=("labkit.pipeline",),
            describe=lambda s: self._found(s).first_seen,
            picture=lambda s: self._found(s).picture,
            fault=self.fault,
            **others,
        )

    def starts_with(
        self,
        name: str,
        why: str,
        count: Callable[..., int],
        made_by: Patch,
        outcome: Outcome = Outcome.OVER_BUDGET,
    ) -> Mistake:
        """A mistake: rank r has count(r, p, m, ...) forwards before its first backward, or all."""

        def seen(s: Observed) -> bool:
            p, m, virtual = (*s.args, 1)[:3]
            counts = [max(1, min(count(rank, *s.args), m * virtual)) for rank in range(p)]
            return (
                p > 1
                and forwards_first(s.y) == counts
                and all(len(microbatches(row, "F")) == m * virtual for row in s.y)
                and self.fault(s) is not None
            )

        return Mistake(name, why, seen, made_by, hint=2, outcome=outcome)

    def is_over(self, s: Observed) -> bool:
        """Whether the schedule is valid and takes too long, or holds too much."""
        return not s.wrong_ranks and self.over(s.y, s.args) is not None

    def fault(self, s: Observed) -> Finding | None:
        """What is wrong with a schedule; None where it keeps to all rules."""
        found = self._found(s)
        if not found.diagnosis or None in s.y:  # the engine says that a function returns nothing
            return None
        return dataclasses.replace(found, first_seen=f"{s.label}: {found.first_seen}")

    def _found(self, s: Observed) -> Finding:
        nothing = Finding(Outcome.PASSED, "", "")
        return self.invalid(s.y, s.args) or self.over(s.y, s.args) or nothing

    def invalid(self, rows: Any, args: tuple[int, ...]) -> Finding | None:
        """Why rows are no training step: the first wrong cell, a missing one, or a deadlock."""
        from labkit.pipeline.text import marked
        from labkit.pipeline.validate import ScheduleError, validate

        wrong = _wrong_form(rows)
        for rank in range(0 if wrong else len(rows)):
            wrong = wrong or self._wrong_cell(rows[rank], rank, args)
        if wrong is None:
            try:
                validate(_schedule_of(rows, args))
                return None
            except ScheduleError as error:
                wrong = "ranks wait for each other", error.reason, {error.rank: error.index}
        name, seen, mark = wrong
        picture = marked(rows, mark) if mark else ""
        return Finding(Outcome.WRONG, name, _WHY[name], seen, 3, picture=picture)

    def _wrong_cell(
        self, row: list[str], rank: int, args: tuple[int, ...]
    ) -> tuple[str, str, dict[int, int]] | None:
        """The first wrong cell of a row: (name, what is seen, where)."""
        p, m, virtual = (*args, 1)[:3]
        computed: set[tuple[str, int, int]] = set()
        for index, cell in enumerate(row):
            kind, stage, microbatch = _parsed(cell, rank)
            made = {(each, stage, microbatch) for each in _COMPUTES[kind]}
            need = _NEEDS.get(kind, "")
            checks = {
                "a cell of another kind": kind not in self.kinds,
                "cells without a stage": self.names_stages and "@" not in cell,
                "a microbatch that does not exist": not 0 <= microbatch < m,
                "a stage that does not exist": not 0 <= stage < p * virtual,
                "a stage of another rank": stage % p != rank,
                "an operation twice": made & computed,
                "a backward before its forward": need == "F"
                and ("F", stage, microbatch) not in computed,
                "W before I": need == "I" and ("I", stage, microbatch) not in computed,
                "a backward before the last forward": self.all_forwards_first
                and kind == "F"
                and any(each == "I" for each, *_ in computed),
            }
            for name, is_wrong in checks.items():
                if is_wrong:
                    return name, f"cell {index} of rank {rank} is {cell}", {rank: index}
            computed |= made
        for kind, stage, microbatch in itertools.product(
            "FIW", range(rank, p * virtual, p), range(m)
        ):
            if (kind, stage, microbatch) not in computed:
                cell = ("B" if kind == "I" and "I" not in self.kinds else kind) + str(microbatch)
                of_stage = f" of stage {stage}" if self.names_stages else ""
                seen = f"the row of rank {rank} has no {cell}{of_stage}"
                return "leaves an operation out", seen, {rank: len(row)}
        return None

    def over(self, rows: Rows, args: tuple[int, ...]) -> Finding | None:
        """What a valid schedule has too much of: activations, then time."""
        from labkit.pipeline import Costs, in_flight, in_time, simulate

        schedule = _schedule_of(rows, args)
        held = in_flight(schedule)
        most = held if self.memory is None else self.memory(*args)
        if any(got > may for got, may in zip(held, most, strict=True)):
            return Finding(
                Outcome.OVER_BUDGET,
                "holds too many activations",
                "Activations are held from a microbatch's forward to the end of its backward. With "
                "fewer of them the step would take as long.",
                f"by rank, {held} activations are held at once; allowed are {most}",
                2,
                picture=in_time(simulate(schedule), most=24),
            )
        for cost in self.costs:
            names = ("forward", "input_gradient", "weight_gradient", "send")
            timing = simulate(schedule, Costs(**dict(zip(names, cost, strict=True))))
            if timing.makespan > (enough := self.time(cost, *args)):
                return Finding(
                    Outcome.OVER_BUDGET,
                    "a larger bubble than needed",
                    "Some rank is idle for a result that another rank could have computed earlier. "
                    "Look for the first dot that is not needed, and for what the next cell needs.",
                    f"with {self._in_words(cost)} the step takes {timing.makespan:g}; {enough:g} "
                    "are enough",
                    2,
                    picture=in_time(timing, most=24),
                )
        return None

    def _in_words(self, cost: Cost) -> str:
        f, i, w, message = cost
        values = {"F": f, "B": i + w, "I": i, "W": w}
        durations = [f"{kind} = {values[kind]:g}" for kind in self.kinds]
        return listed([*durations, *[f"{message:g} per message"] * (message > 0)])


def _wrong_form(rows: Any) -> tuple[str, str, dict[int, int]] | None:
    """What is wrong with rows that are no lists of cells: (name, what is seen, nothing)."""
    for rank, row in enumerate(rows):
        returned = f"for rank {rank} the function returns {row!r:.60}"
        if isinstance(row, list) and row and all(isinstance(each, list | tuple) for each in row):
            return "returns the rows of all ranks", returned, {}
        for cell in row if isinstance(row, list) else [0]:
            if cell is None or (isinstance(cell, str) and _IDLE.fullmatch(cell)):
                return "has cells for waiting", f"rank {rank} has the cell {cell!r}", {}
            if not isinstance(cell, str) or not _CELL.fullmatch(cell):
                return "returns something else than a list of cells", returned, {}
    return None


def _parsed(cell: str, rank: int) -> tuple[str, int, int]:
    """(kind, stage, microbatch) of "F3", whose stage is the rank's, or of "F3@2"."""
    match = _CELL.fullmatch(cell)
    assert match is not None, f"{cell} is no cell"
    kind, microbatch, stage = match.groups()
    return kind, rank if stage is None else int(stage), int(microbatch)


def _schedule_of(rows: Rows, args: tuple[int, ...]) -> Any:
    """The rows as a Schedule of labkit.pipeline."""
    from labkit.pipeline import Kind, Op, Schedule

    p, m, virtual = (*args, 1)[:3]
    ops = [[_parsed(cell, rank) for cell in row] for rank, row in enumerate(rows)]
    as_ops = tuple(tuple(Op(Kind(kind), s, i) for kind, s, i in row) for row in ops)
    return Schedule("graded", as_ops, p * virtual, m)
