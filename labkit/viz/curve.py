"""One curve of measured times over sizes, and points to mark on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Curve:
    """One algorithm: what was measured at each size, and what a model says at any size."""

    name: str
    sizes: Sequence[int]
    """Bytes of the tensor, ascending."""
    seconds: Sequence[float]
    quartiles: Sequence[tuple[float, float]] = ()
    """By size: between which seconds half of the calls were; drawn as a thin bar."""
    model: Callable[[float], float] | None = None
    """Seconds by bytes; without one the points are joined."""


class Mark(NamedTuple):
    """Where two curves meet; `name` is written beside it, if there is one."""

    nbytes: float
    seconds: float
    name: str = ""
    is_measured: bool = True
