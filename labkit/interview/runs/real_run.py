"""@real_run: one run for all who ask the same; run: labkit's, with more patience."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import labkit

Asked = ParamSpec("Asked")
Measured = TypeVar("Measured")

# Evidence is proved on busy machines, too, and none of these is meant to hang.
run = functools.partial(labkit.run, timeout=180)


def real_run(fn: Callable[Asked, Measured]) -> Callable[Asked, Measured]:
    """`fn`, which launches ranks, run once in this process for each set of arguments.

    Its arguments must be hashable: numbers, texts, tuples.
    """
    return functools.lru_cache(maxsize=None)(fn)  # type: ignore[return-value]
