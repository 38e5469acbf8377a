"""Grading: exercises on real ranks, judged by what they computed and what they sent.

    check("ring_all_reduce")      the learner's exercises/ring_all_reduce.py, or a function
    hint("ring_all_reduce")       the next of three
    solution("ring_all_reduce")   after a pass, or on confirmation
    reset("ring_all_reduce")      the stub again; the learner's file is kept

A check's way: engine.py reads the code (submission.py) and hands it to the exercise's grader
(graders/), which is of one of two kinds. A function on ranks (on_ranks.py): inputs are drawn, ranks
launched (harness.py, on each of them), what they left is collected (evidence.py) and judged
(judge.py). Functions that answer questions (answers.py): they are asked in one process of their own
(answering.py), and held against real runs. Either way a verdict comes out (verdict.py).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.grade.desk import Note, hint, reset, solution
    from labkit.grade.engine import check
    from labkit.grade.outcome import Outcome
    from labkit.grade.verdict import Verdict

__all__ = ["Note", "Outcome", "Verdict", "check", "hint", "reset", "solution"]

_HOMES = {
    "check": "engine",
    "hint": "desk",
    "solution": "desk",
    "reset": "desk",
    "Note": "desk",
    "Outcome": "outcome",
    "Verdict": "verdict",
}


def __getattr__(name: str) -> Any:
    # Ranks import this package for its harness; what only the driver needs would slow them down.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
