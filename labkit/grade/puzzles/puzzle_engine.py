"""solve: one answer to one puzzle, judged and remembered. Notebook and terminal both come here."""

from __future__ import annotations

from typing import Any

from labkit import progress
from labkit.grade.outcome import Outcome
from labkit.grade.puzzles.book import get_puzzle
from labkit.grade.puzzles.ruling import Ruling, judge

_KIND = "puzzle"


def solve(name: str, answer: Any) -> Ruling:
    """Judge an answer, and remember how it ended. Raises UnknownPuzzle.

    answer: text with a line per rank, a list of lines or of lists of cells, or a Schedule.
    """
    ruling = judge(get_puzzle(name), answer)
    if ruling.outcome is not Outcome.NOT_ATTEMPTED:
        makespan = None if ruling.timing is None else ruling.timing.makespan
        progress.record(
            _KIND,
            ruling.puzzle.name,
            outcome=ruling.outcome.value,
            diagnosis=ruling.diagnosis,
            makespan=makespan,
            memory=ruling.memory,
        )
    return ruling


def has_passed(name: str) -> bool:
    """Whether an answer to the puzzle has ever passed on this machine."""
    return Outcome.PASSED.value in _outcomes(name)


def standing(name: str) -> str:
    """Where the player is with a puzzle: `passed`, the last outcome, or `not attempted`."""
    if has_passed(name):
        return Outcome.PASSED.value
    return ([Outcome.NOT_ATTEMPTED.value] + _outcomes(name))[-1]


def _outcomes(name: str) -> list[str]:
    events = progress.events(get_puzzle(name).name, _KIND)
    return [event.detail.get("outcome", "?") for event in events]
