"""Grading: exercises on real ranks, judged by what they computed and what they sent.

    check("ring_all_reduce")      the learner's exercises/ring_all_reduce.py, or a function
    hint("ring_all_reduce")       the next of three
    solution("ring_all_reduce")   after a pass, or on confirmation
    reset("ring_all_reduce")      the stub again; the learner's file is kept

A check's way: engine.py draws inputs (graders/), launches ranks (harness.py, on each of them),
collects what they left (evidence.py) and has it judged (judge.py) into a verdict (verdict.py).
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
