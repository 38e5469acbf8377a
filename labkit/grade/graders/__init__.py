"""What each exercise is graded on: one module per exercise, each with a GRADER.

Three kinds, each a base class with the launches written out:

    OnRanks   (on_ranks.py)  a function that runs on ranks; judged by values, journals, traffic
    Answers   (answers.py)   functions that answer questions, in one process of their own; judged
                             against real runs that they do not see
    ByTheory  (by_theory.py) Answers of calculation: a wrong number is named after the mistake that
                             leads to it
"""

import importlib
from collections.abc import Sequence
from typing import Protocol

from labkit.grade.outcome import Graded
from labkit.grade.submission import Submission


class Grader(Protocol):
    """How an exercise tells right from wrong."""

    functions: Sequence[str]
    """The names of what the learner writes."""
    shown_by_a_pass: str
    """What has been checked, for the verdict of a pass."""

    def grade(self, code: Submission, seed: int, timeout_s: float) -> Graded:
        """Run the code, and judge it. Everything random comes from `seed`."""


def load_grader(name: str) -> Grader:
    """The grader of the exercise `name`."""
    grader: Grader = importlib.import_module(f"{__name__}.{name}").GRADER
    return grader
