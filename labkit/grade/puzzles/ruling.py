"""The ruling on an answer: is it a step, how long does it take, what does each rank hold?

Only an answer's rows count. The numbers of stages and microbatches are the puzzle's, and so are the
costs and sizes: whole numbers, so that no rounding decides. Where an answer exceeds a budget, the
ruling explains it: the longest wait, the longest chain, the first cell that is too much.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

from labkit import progress
from labkit.grade.puzzles.book import Puzzle, get_puzzle
from labkit.grade.verdict import Outcome
from labkit.pipeline import (
    Kind,
    Op,
    Schedule,
    ScheduleError,
    Timing,
    in_time,
    parse,
    simulate,
    validate,
)
from labkit.pipeline.op import around, cell_of, require_schedule

_KIND = "puzzle"


@dataclass(frozen=True, repr=False)
class Ruling:
    """The result of an answer. True where it passes: `assert solve("two ranks", rows)`."""

    puzzle: Puzzle
    outcome: Outcome
    diagnosis: str = ""
    """The mistake's name; empty after a pass."""
    paragraphs: list[tuple[str, str]] = field(default_factory=list)
    """Return the lines below the headline: (label, text), in order."""
    timing: Timing | None = None
    """The answer in time, where it is a step; for pictures."""
    memory: list[int] | None = None
    """By rank, the most that it holds, where it is a step."""

    def __bool__(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def headline(self) -> str:
        """`let go: over budget: it holds too much`"""
        text = f"{self.puzzle.name}: {self.outcome.value}"
        return f"{text}: {self.diagnosis}" if self.diagnosis else text

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


def solve(name: str, answer: Any) -> Ruling:
    """Judge an answer, and remember how it ended. Raises UnknownPuzzle. answer: as of `judge`."""
    ruling = judge(get_puzzle(name), answer)
    if ruling.outcome is not Outcome.NOT_ATTEMPTED:
        progress.record(
            _KIND,
            ruling.puzzle.name,
            outcome=ruling.outcome.value,
            diagnosis=ruling.diagnosis,
            makespan=None if ruling.timing is None else ruling.timing.makespan,
            memory=ruling.memory,
        )
    return ruling


def standing(name: str) -> str:
    """Return the state of a puzzle: `passed`, the last outcome, or `not attempted`."""
    events = progress.events(get_puzzle(name).name, _KIND)
    outcomes = [event.detail.get("outcome", "?") for event in events]
    if Outcome.PASSED.value in outcomes:
        return Outcome.PASSED.value
    return [Outcome.NOT_ATTEMPTED.value, *outcomes][-1]


def judge(puzzle: Puzzle, answer: Any) -> Ruling:
    """Hold an answer against the puzzle. It passes if it is a step within both budgets.

    answer: text with a line per rank, a list of such lines, or a Schedule, as `plan` makes it.
    """
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return Ruling(puzzle, Outcome.NOT_ATTEMPTED, "no rows yet", puzzle.facts)
    try:
        schedule = _step(answer, puzzle)
    except ScheduleError as error:
        return Ruling(puzzle, Outcome.WRONG, "it is no training step", [("Why", str(error))])
    except (TypeError, ValueError) as error:
        how = ("Write", dict(puzzle.facts)["Write"])
        return Ruling(puzzle, Outcome.WRONG, "it cannot be read", [("Why", str(error)), how])
    return _against_budgets(puzzle, schedule)


def _step(answer: Any, puzzle: Puzzle) -> Schedule:
    """The answer as a training step on the puzzle's stages.

    Raises ScheduleError, which marks the first cell that the puzzle does not allow; ValueError or
    TypeError for what is no list of operations of its ranks.
    """
    problem = puzzle.problem
    rows = (answer if isinstance(answer, Schedule) else parse(answer)).rows
    schedule = Schedule("answer", rows, problem.num_stages, problem.num_microbatches)
    require_schedule(schedule)
    if len(rows) != problem.num_ranks:
        counted = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        raise ValueError(f"{counted} for {problem.num_ranks} ranks: write one for each")
    holders = dict(enumerate(problem.placement))
    for rank, row in enumerate(rows):
        for index, op in enumerate(row):
            reason = ""
            if (holder := holders.get(op.stage, rank)) != rank:
                reason = f"{op} of stage {op.stage} is on rank {rank}; here rank {holder} holds it"
            elif op.kind in (Kind.I, Kind.W) and not problem.is_split:
                reason = f"{op} is half a backward; here it is whole, B{op.microbatch}"
            if reason:
                raise ScheduleError(reason, schedule, rank, index)
    validate(schedule)
    return schedule


def _against_budgets(puzzle: Puzzle, schedule: Schedule) -> Ruling:
    timing = simulate(schedule, puzzle.problem.costs)
    memory = memory_by_rank(schedule, puzzle)
    is_slow, is_large = timing.makespan > puzzle.makespan, max(memory) > puzzle.memory
    held = [f"{amount} on rank {rank}" for rank, amount in enumerate(memory)]
    paragraphs = [
        ("Time", f"{timing.makespan:g}; the budget is {puzzle.makespan}"),
        ("Memory", f"{', '.join(held)}; the budget is {puzzle.memory}"),
    ]
    if not is_slow and not is_large:
        paragraphs.append(("Take along", puzzle.teaches))
        return Ruling(puzzle, Outcome.PASSED, "", paragraphs, timing, memory)
    if is_large:
        paragraphs.append(("Too much", too_much(schedule, puzzle)))
    if is_slow:
        paragraphs += [
            ("Waiting", longest_wait(timing)),
            ("Longest chain", longest_chain(timing)),
        ]
    faults = ["takes too long"] * is_slow + ["holds too much"] * is_large
    diagnosis = f"it {' and '.join(faults)}"
    return Ruling(puzzle, Outcome.OVER_BUDGET, diagnosis, paragraphs, timing, memory)


_MOST_RUNS = 6


def longest_wait(timing: Timing) -> str:
    """Return the rank that is idle longest in all, and its longest wait in one go."""
    idle = [timing.makespan - busy for busy in timing.busy]
    if not any(idle):
        return "no rank is ever idle"
    rank = idle.index(max(idle))
    row = timing.rows[rank]
    starts = [0.0, *(span.end for span in row)]
    ends = [*(span.start for span in row), timing.makespan]
    waits = [end - start for start, end in zip(starts, ends, strict=True)]
    index = waits.index(max(waits))
    start, end = starts[index], ends[index]
    text = f"rank {rank} is idle longest, {idle[rank]:g} of {timing.makespan:g}"
    text += f"; its longest wait is from {start:g} to {end:g}, "
    if index == len(row):
        return f"{text}after its last operation"
    op = row[index].op
    return f"{text}before {cell_of(timing.schedule)(op)}, {_reason(op, timing)}"


def _reason(op: Op, timing: Timing) -> str:
    need = op.needs(timing.schedule.num_stages)
    assert need is not None, "a rank waits for messages only"
    rank, maker = next((rank, s.op) for rank, s in timing.spans() if s.op.product == need)
    return f"for {maker} of stage {maker.stage} on rank {rank}"


def longest_chain(timing: Timing) -> str:
    """Return operations of which each begins when the one before lets it, from 0 to the end.

    `rank 0 F0 F1, rank 1 F1 B1, rank 0 B1`; of a long one the beginning. Only an order that
    shortens it is faster.
    """
    made = {span.op.product: (rank, span) for rank, span in timing.spans()}
    ends = {(rank, span.end): span for rank, span in timing.spans()}
    rank, span = max(timing.spans(), key=lambda each: each[1].end)
    chain = [(rank, span.op)]
    while span.start > 0:
        if (rank, span.start) in ends:
            span = ends[rank, span.start]
        else:
            need = span.op.needs(timing.schedule.num_stages)
            assert need is not None, "it begins when its message has arrived"
            rank, span = made[need]
        chain.append((rank, span.op))
    written = cell_of(timing.schedule)
    runs = [
        f"rank {rank} {' '.join(written(op) for _, op in run)}"
        for rank, run in groupby(reversed(chain), key=lambda each: each[0])
    ]
    if len(runs) > _MOST_RUNS:
        return f"{', '.join(runs[:_MOST_RUNS])}, ...: {len(runs) - 1} times from rank to rank"
    return ", ".join(runs)


def memory_by_rank(schedule: Schedule, puzzle: Puzzle) -> list[int]:
    """Return the most that each rank holds."""
    return [max(_held(row, puzzle)) for row in schedule.rows]


def too_much(schedule: Schedule, puzzle: Puzzle) -> str:
    """Mark the first cell of each rank that exceeds its memory, in the rows."""
    marks = {}
    text = []
    written = cell_of(schedule)
    for rank, row in enumerate(schedule.rows):
        held = _held(row, puzzle)
        over = [index for index, amount in enumerate(held) if amount > puzzle.memory]
        if over:
            marks[rank] = over[0]
            text.append(
                f"rank {rank} holds {held[over[0]]} with {written(row[over[0]])}, "
                f"operation {over[0] + 1} of its row"
            )
    return f"{'; '.join(text)}; {puzzle.memory} is all there is\n{around(schedule, marks)}"


def _held(row: tuple[Op, ...], puzzle: Puzzle) -> list[int]:
    """Return what a rank holds after each of its operations."""
    return list(accumulate(puzzle.problem.change(op.kind, op.stage) for op in row))
