"""Grading: exercises on real ranks, judged by what they computed and what they sent.

    check("ring_all_reduce")      the learner's exercises/ring_all_reduce.py, or a function
    hint("ring_all_reduce")       the next of three
    solution("ring_all_reduce")   after a pass, or on confirmation
    reset("ring_all_reduce")      the stub again; the learner's file is kept

Read in this order: grader.py, what a grader is made of, with one of graders/ beside it; engine.py,
from a name to a verdict; submission.py reads the code, harness.py runs it on each rank, observed.py
is what was seen there; findings.py looks for the first thing that is wrong, with unfinished.py and
differences.py; check_verdict.py says it. stubs.py, catalog.py and workspace.py are about files,
desk.py and course.py about the learner; puzzles/ is another kind of exercise.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.grade.check_verdict import Verdict
    from labkit.grade.desk import Note, hint, reset, solution
    from labkit.grade.engine import check
    from labkit.grade.outcome import Outcome

__all__ = ["Note", "Outcome", "Verdict", "check", "hint", "reset", "solution"]

_HOMES = {
    "check": "engine",
    "hint": "desk",
    "solution": "desk",
    "reset": "desk",
    "Note": "desk",
    "Outcome": "outcome",
    "Verdict": "check_verdict",
}


def __getattr__(name: str) -> Any:
    # Ranks import this package for its harness; what only the driver needs would slow them down.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
