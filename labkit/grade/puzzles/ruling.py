"""The judge: is it a step, how long does it take, what does each rank hold, and is that enough?

Pure: the same answer always gets the same ruling. Everything is computed from the rows alone, with
the puzzle's own costs and sizes, which are whole numbers, so that no rounding decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.grade.outcome import Outcome
from labkit.grade.puzzles import explain
from labkit.grade.puzzles.puzzle import Puzzle
from labkit.grade.puzzles.puzzle_rules import require_step
from labkit.grade.puzzles.reading import Unreadable, is_blank, read
from labkit.pipeline import Schedule, ScheduleError, Timing, in_time, simulate


@dataclass(frozen=True, repr=False)
class Ruling:
    """What came of an answer. True where it passes: `assert solve("two ranks", rows)`."""

    puzzle: Puzzle
    outcome: Outcome
    diagnosis: str = ""
    """The mistake's name; empty after a pass."""
    paragraphs: list[tuple[str, str]] = field(default_factory=list)
    """What is said below the headline: (label, text), in order."""
    timing: Timing | None = None
    """The answer in time, where it is a step; for pictures."""
    memory: list[int] | None = None
    """By rank, the most that it holds, where it is a step."""

    def __bool__(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def headline(self) -> str:
        """`let go: over budget: it holds too much`"""
        told = f"{self.puzzle.name}: {self.outcome.value}"
        return f"{told}: {self.diagnosis}" if self.diagnosis else told

    @property
    def grid(self) -> str:
        """The order in time, as text; empty where it is no step."""
        return "" if self.timing is None else in_time(self.timing, most=200)

    def __repr__(self) -> str:
        lines = [self.headline, *self.grid.splitlines()]
        for label, text in self.paragraphs:
            first, *more = text.splitlines()
            lines += [f"  {label}: {first}", *(f"    {line}" for line in more)]
        return "\n".join(lines)


def judge(puzzle: Puzzle, answer: Any) -> Ruling:
    """Hold an answer against the puzzle. Never raises for anything that an answer can be.

    answer: see reading.read. Passed: a training step on the puzzle's stages, within both budgets.
    """
    if is_blank(answer):
        return Ruling(puzzle, Outcome.NOT_ATTEMPTED, "no rows yet", puzzle.facts)
    try:
        schedule = read(answer, puzzle)
    except Unreadable as error:
        how = ("Write", dict(puzzle.facts)["Write"])
        return Ruling(puzzle, Outcome.WRONG, "it cannot be read", [("Why", str(error)), how])
    try:
        require_step(schedule, puzzle)
    except ScheduleError as error:
        return Ruling(puzzle, Outcome.WRONG, "it is no training step", [("Why", str(error))])
    return _against_budgets(puzzle, schedule)


def _against_budgets(puzzle: Puzzle, schedule: Schedule) -> Ruling:
    timing = simulate(schedule, puzzle.problem.costs)
    memory = explain.memory_by_rank(schedule, puzzle)
    is_slow, is_large = timing.makespan > puzzle.makespan, max(memory) > puzzle.memory
    paragraphs = [
        ("Time", f"{timing.makespan:g}; the budget is {puzzle.makespan}"),
        ("Memory", f"{_by_rank(memory)}; the budget is {puzzle.memory}"),
    ]
    if not is_slow and not is_large:
        paragraphs.append(("Take along", puzzle.teaches))
        return Ruling(puzzle, Outcome.PASSED, "", paragraphs, timing, memory)
    if is_large:
        paragraphs.append(("Too much", explain.too_much(schedule, puzzle)))
    if is_slow:
        paragraphs += [
            ("Waiting", explain.longest_wait(timing)),
            ("Longest chain", explain.longest_chain(timing)),
        ]
    faults = ["takes too long"] * is_slow + ["holds too much"] * is_large
    diagnosis = f"it {' and '.join(faults)}"
    return Ruling(puzzle, Outcome.OVER_BUDGET, diagnosis, paragraphs, timing, memory)


def _by_rank(memory: list[int]) -> str:
    return ", ".join(f"{amount} on rank {rank}" for rank, amount in enumerate(memory))
