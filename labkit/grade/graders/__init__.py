"""One file per exercise, each with a GRADER: see docs/adding_an_exercise.md."""

import dataclasses
import functools
import importlib

from labkit.grade.grader import InParts, OnRanks, Questions


@functools.cache
def load_grader(name: str) -> OnRanks | Questions | InParts:
    """The grader of the exercise `name`."""
    grader: OnRanks | Questions | InParts = importlib.import_module(f"{__name__}.{name}").GRADER
    if isinstance(grader, InParts):
        parts = tuple(dataclasses.replace(part, name=name) for part in grader.parts)
        return InParts(parts=parts)
    return dataclasses.replace(grader, name=name)
