"""One file per exercise, each with a GRADER: see docs/adding_an_exercise.md."""

import importlib

from labkit.grade.grader import InParts, OnRanks, Questions


def load_grader(name: str) -> OnRanks | Questions | InParts:
    """The grader of the exercise `name`."""
    grader: OnRanks | Questions | InParts = importlib.import_module(f"{__name__}.{name}").GRADER
    return grader
