"""@real_run: one run for all who ask the same; @timed_run: what clocks read, live or from a record.

run: labkit's, with more patience.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import labkit

Asked = ParamSpec("Asked")
Measured = TypeVar("Measured")

# Evidence is proved on busy machines, too, and none of these is meant to hang.
run = functools.partial(labkit.run, timeout=180)
_record: ContextVar[tuple[dict[str, Any], bool] | None] = ContextVar("_record", default=None)


def real_run(fn: Callable[Asked, Measured]) -> Callable[Asked, Measured]:
    """`fn`, which launches ranks, run once in this process for each set of arguments.

    Its arguments must be hashable: numbers, texts, tuples.
    """
    return functools.lru_cache(maxsize=None)(fn)  # type: ignore[return-value]


def timed_run(fn: Callable[Asked, Measured]) -> Callable[Asked, Measured]:
    """`real_run` of an `fn` that returns what clocks read, in lists that JSON holds.

    Inside `times_of(record)` nothing runs: it is what the record has.
    """
    measured = real_run(fn)

    @functools.wraps(fn)
    def read(*args: Asked.args, **kwargs: Asked.kwargs) -> Measured:
        asked = _record.get()
        if asked is None:
            return measured(*args, **kwargs)
        times, fills = asked
        name = f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}{args}"
        if fills and name not in times:
            times[name] = measured(*args, **kwargs)
        if name not in times:
            raise LookupError(f"no clock was recorded for {name}: python -m scripts.court_times")
        found: Measured = times[name]
        return found

    return read


@contextmanager
def times_of(record: dict[str, Any], *, fills: bool = False) -> Iterator[None]:
    """What timed runs return in here: the record's. fills: it is made, of the runs asked for."""
    token = _record.set((record, fills))
    try:
        yield
    finally:
        _record.reset(token)
