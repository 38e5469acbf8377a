"""Real runs as evidence: each is executed once in a process, and its journal is read by region.

@real_run decorates a function of labkit/course/SUBJECT/evidence.py. The function takes numbers and
strings, and returns a number in base units, or a tuple of numbers. Its docstring describes the run
and the quantity. Bytes, counts and orders of events are the same on every machine. A time is
evidence only on throttled links, and only with "about".
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import labkit
from labkit.comm import Operation, Timeline

Asked = ParamSpec("Asked")
Measured = TypeVar("Measured")
# Ten minutes: none of these runs hangs, and a busy machine must not fail them.
run = functools.partial(labkit.run, timeout=600)


def real_run(fn: Callable[Asked, Measured]) -> Callable[Asked, Measured]:
    """Cache the results of `fn`, which launches ranks, by its arguments.

    The arguments must be hashable: numbers, strings, tuples.
    """
    return functools.lru_cache(maxsize=None)(fn)  # type: ignore[return-value]


def region_of(timeline: Timeline, name: str) -> tuple[float, float]:
    """Return start and end of the latest finished region of this name. KeyError if there is
    none."""
    for each in reversed(timeline.regions):
        if each.name == name and each.end_s is not None:
            return each.start_s, each.end_s
    names = ", ".join(sorted({each.name for each in timeline.regions}))
    raise KeyError(f"no region {name!r} has ended; there are {names or 'none'}")


def operations_in(timeline: Timeline, name: str) -> list[Operation]:
    """Return the operations that were posted in the region."""
    start_s, end_s = region_of(timeline, name)
    return [each for each in timeline.operations if start_s <= each.posted_s <= end_s]


def sent_bytes_in(timeline: Timeline, name: str) -> int:
    """Return the total of bytes that the operations in the region sent."""
    return sum(each.sent_bytes for each in operations_in(timeline, name))
