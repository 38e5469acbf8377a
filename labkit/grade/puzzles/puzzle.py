"""A puzzle: a scheduling problem, a memory budget, and the least time within that memory."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.comm.words import listed
from labkit.pipeline import Kind, Problem


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Both budgets are corners of the trade-off: the search finds nothing faster within this
    memory, and with one unit less there is nothing as fast. A test searches anew.
    """

    name: str
    difficulty: int
    """1 to 5."""
    story: str
    """What is to be arranged, and what is in the way."""
    teaches: str
    """What to take along, told after a pass."""
    problem: Problem
    memory: int
    """The most that activations may take on any rank, in the problem's unit."""
    makespan: int
    """The time in which the step must end."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What a player needs to know: (label, text), in order."""
        problem = self.problem
        return [
            ("Stages", _placement(problem)),
            ("Microbatches", f"{problem.num_microbatches}"),
            ("Time", _times(problem)),
            ("Memory", _memory(problem)),
            ("Budget", f"time {self.makespan}, and memory {self.memory} on every rank"),
            ("Write", _form(problem)),
        ]

    def __str__(self) -> str:
        lines = [f"{self.name} (difficulty {self.difficulty} of 5)", self.story]
        return "\n".join([*lines, *(f"  {label}: {text}" for label, text in self.facts)])


def _placement(problem: Problem) -> str:
    if problem.placement == tuple(range(problem.num_ranks)):
        return f"{problem.num_stages}, stage s on rank s"
    held = [
        f"{listed([str(s) for s, holder in enumerate(problem.placement) if holder == rank])} on "
        f"rank {rank}"
        for rank in range(problem.num_ranks)
    ]
    return f"{problem.num_stages}: {'; '.join(held)}"


def _times(problem: Problem) -> str:
    parts = []
    for kind in problem.kinds:
        costs = [problem.cost(kind, stage) for stage in range(problem.num_stages)]
        parts.append(f"{kind} takes {_by_stage(costs)}")
    sends = [problem.send_cost(stage) for stage in range(problem.num_stages - 1)]
    parts.append(
        f"a message between ranks takes {max(sends)}" if any(sends) else "messages take none"
    )
    return ", ".join(parts)


def _memory(problem: Problem) -> str:
    if not problem.is_split:
        return f"F takes {_by_stage(problem.held)} until its B has ended"
    left = [-problem.change(Kind.W, stage) for stage in range(problem.num_stages)]
    if left == problem.held:
        return f"F takes {_by_stage(problem.held)} until its W has ended"
    return f"F takes {_by_stage(problem.held)}, of which {_by_stage(left)} stays from I to W's end"


def _by_stage(numbers: list[int]) -> str:
    if len(set(numbers)) == 1:
        return str(numbers[0])
    return f"{' '.join(map(str, numbers))} (by stage)"


def _form(problem: Problem) -> str:
    last = problem.kinds[-1]
    if problem.num_stages == problem.num_ranks:
        cells = f"F0 F1 ... {last}{problem.num_microbatches - 1}"
    else:
        stage = problem.placement.index(0)
        cells = f"F0@{stage} F1@{stage} ..., with the stage after @"
    split = ""
    if problem.is_split:
        split = "; a backward is I and later W, or both at once as B"
    return f"a line per rank, rank 0 first: {cells}{split}"
