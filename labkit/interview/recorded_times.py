"""@timed_run: measured times of a run, live or from the record of an earlier one."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Measured = TypeVar("Measured")
_record: ContextVar[tuple[dict[str, Any], bool] | None] = ContextVar("_record", default=None)


def timed_run(fn: Callable[Asked, Measured]) -> Callable[Asked, Measured]:
    """Run `fn`, which launches ranks and returns times in lists that JSON can hold.

    It runs once in this process for each set of arguments, which are hashable. Inside
    `times_of(record)` nothing runs: the record has the result.
    """
    measured = functools.lru_cache(maxsize=None)(fn)

    @functools.wraps(fn)
    def read(*args: Asked.args, **kwargs: Asked.kwargs) -> Measured:
        asked = _record.get()
        if asked is None:
            return measured(*args, **kwargs)  # type: ignore[arg-type]
        times, fills = asked
        name = f"{fn.__module__.removeprefix('labkit.course.')}.{fn.__name__}{args}"
        if fills and name not in times:
            times[name] = measured(*args, **kwargs)  # type: ignore[arg-type]
        if name not in times:
            raise LookupError(f"no clock was recorded for {name}: python -m scripts.court_times")
        found: Measured = times[name]
        return found

    return read


@contextmanager
def times_of(record: dict[str, Any], *, fills: bool = False) -> Iterator[None]:
    """Let timed runs return the record's times inside. fills: measure those that it lacks."""
    token = _record.set((record, fills))
    try:
        yield
    finally:
        _record.reset(token)
