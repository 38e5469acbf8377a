"""One number for all stages or ranks, or one for each: in whatever kind of list these come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def plain(given: Any) -> Any:
    """A list, tuple, range, numpy array or tensor as a tuple; all else, such as a number, as it is.

    An array without dims is the number in it. The numbers in it are not checked.
    """
    if hasattr(given, "tolist"):  # numpy's and torch's numbers are then Python's
        given = given.tolist()
    return tuple(given) if isinstance(given, Sequence) and not _is_text(given) else given


def _is_text(given: object) -> bool:
    return isinstance(given, str | bytes)
