"""One file per exercise, each with a GRADER: see docs/adding_an_exercise.md."""

import dataclasses
import functools
import importlib

from labkit.grade.grader import Grader


@functools.cache
def load_graders(name: str) -> tuple[Grader, ...]:
    """The grader of the exercise `name`, or one for each of its parts."""
    graders = importlib.import_module(f"{__name__}.{name}").GRADER
    parts = graders if isinstance(graders, list) else [graders]
    return tuple(dataclasses.replace(part, functions=part.functions or (name,)) for part in parts)


def functions_of(name: str) -> tuple[str, ...]:
    """The functions that the learner writes."""
    return tuple(function for part in load_graders(name) for function in part.functions)
