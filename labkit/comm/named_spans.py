"""Names that a program gives: to a span of its work, and to what its operations are for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from labkit.comm.journal import Journal

# Of each thread: hooks of a backward pass may run beside the main one.
_label: ContextVar[str | None] = ContextVar("label", default=None)


def current_label() -> str | None:
    """What the operations of this thread are for, if it says so."""
    return _label.get()


class NamedSpans:
    """What a Group offers for `with`: a region of the timeline, and a label for operations."""

    _journal: Journal

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Name a span of this rank's work, for the timeline: `with world.region("forward"):`."""
        if not isinstance(name, str):
            raise TypeError(f"region names a span of work: {name!r} is no text")
        record = self._journal.begin_region(name)
        try:
            yield
        finally:
            self._journal.done(record)

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        """Say what the operations inside are for: `with world.label(parameter_name):`.

        Operations are matched by their order alone, and two turns of a loop look the same where
        the program has no names for its tensors (agreement/loop_items.py). Labels are compared
        like shapes: ranks that give different ones to operations that meet get a Disagreement. Of
        nested labels the inner one counts.
        TypeError: a name that is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"a label says what an operation is for: {name!r} is no text")
        token = _label.set(name)
        try:
            yield
        finally:
            _label.reset(token)
