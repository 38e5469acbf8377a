"""Names that a program gives: to a span of its work, and to what its operations are for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from labkit.comm.journal import Journal

# Of each thread: hooks of a backward pass may run beside the main one.
_label: ContextVar[str | None] = ContextVar("label", default=None)


def current_label() -> str | None:
    """What the operations of this thread are for, if it says so."""
    return _label.get()


@contextmanager
def messages_of(kind: str, x: torch.Tensor, root: int | None = None) -> Iterator[None]:
    """Label the messages of a collective by what all ranks must mean alike, if they have no label.

    Their flat pieces fit into each other whatever x's shape, as do those of another algorithm.
    """
    said = f"{kind} of {x.dtype} {tuple(x.shape)}".replace("torch.", "")
    said += "" if root is None else f" from rank {root}"
    with _labelled(said if current_label() is None else current_label()):
        yield


@contextmanager
def _labelled(name: str | None) -> Iterator[None]:
    token = _label.set(name)
    try:
        yield
    finally:
        _label.reset(token)


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

        Operations are matched by their order alone, and two turns of a loop look the same. Labels
        are compared like shapes: ranks that give different ones to operations that meet get a
        Disagreement. Of nested labels the inner one counts.
        TypeError: a name that is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"a label says what an operation is for: {name!r} is no text")
        with _labelled(name):
            yield
