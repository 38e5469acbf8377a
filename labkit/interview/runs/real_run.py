"""@real_run: one run for all who ask the same, and none of its output."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Measured = TypeVar("Measured")


def real_run(fn: Callable[Asked, Measured]) -> Callable[Asked, Measured]:
    """`fn`, which launches ranks, run once in this process for each set of arguments.

    Its arguments must be hashable: numbers, texts, tuples.
    """
    return functools.lru_cache(maxsize=None)(fn)  # type: ignore[return-value]
