"""Noticing that two ranks make the same calls in another order."""

from __future__ import annotations


class OrderOfCalls:
    """Two ranks' calls side by side: notices the same calls in another order.

    Matching calls may read differently, as in `if rank == root: ... else: ...`. So a difference
    alone means nothing. But once A stood for B, and later B stands for A (or A for B, B for C, C
    for A), the same calls were made in another order: then some of them were mismatched.
    """

    def __init__(self) -> None:
        """Nothing differs yet."""
        self._stood_for: dict[object, dict[object, int]] = {}

    def differ(self, ours: object, theirs: object, sequence: int) -> list[int]:
        """Enter two calls that met; the sequence numbers of a circle that this closes."""
        circle = self._path(theirs, ours, [])
        self._stood_for.setdefault(ours, {})[theirs] = sequence
        return sorted({*circle, sequence}) if circle else []

    def _path(self, start: object, end: object, seen: list[object]) -> list[int]:
        """Sequence numbers of differences that lead from one call to another; [] for none."""
        for other, sequence in self._stood_for.get(start, {}).items():
            if other == end:
                return [sequence]
            if other not in seen and (rest := self._path(other, end, [*seen, start])):
                return [sequence, *rest]
        return []
