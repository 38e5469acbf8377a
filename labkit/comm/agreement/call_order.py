"""Noticing that two ranks make the same calls in another order."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import NamedTuple

_MOST_TEXTS = 1024


class Said(NamedTuple):
    """A call as the program says it: its text, and the lines on which it stands.

    Both go from the call itself out to the function that runs on the rank, so that `sync(weight)`
    and `sync(bias)` differ although both come to the same line in `sync`.
    """

    text: Hashable
    lines: Hashable


class _Meeting(NamedTuple):
    sequence: int
    our_lines: Hashable
    their_lines: Hashable


class OrderOfCalls:
    """Two ranks' calls side by side: notices the same calls in another order.

    Matching calls may read differently, as in `if rank == root: ... else: ...`. So a difference
    alone means nothing. But once A stood for B, and later B stands for A (or A for B, B for C, C
    for A), the same calls were made in another order: then some of them were mismatched.

    Unless A stands on the same lines on both ranks, and they come there at different times: a loop
    in which ranks take turns, one contributing and the other passing zeros, is right.
    """

    def __init__(self) -> None:
        """Nothing differs yet."""
        self._met: dict[Hashable, dict[Hashable, _Meeting]] = {}

    def differ(self, ours: Said, theirs: Said, sequence: int) -> list[int]:
        """Enter two calls that met; the sequence numbers of a circle that this closes, or []."""
        if len(self._met) > _MOST_TEXTS:
            self._met.clear()  # texts made up at run time: no order can be told from them
        new = _Meeting(sequence, ours.lines, theirs.lines)
        path = self._path(theirs.text, ours.text)
        self._met.setdefault(ours.text, {})[theirs.text] = new
        if not path or _take_turns([*path, (ours.text, theirs.text, new)]):
            return []
        return sorted({meeting.sequence for _, _, meeting in path} | {sequence})

    def _path(self, start: Hashable, end: Hashable) -> list[tuple[Hashable, Hashable, _Meeting]]:
        """Meetings that lead from one text to another, each (our text, their text, meeting)."""
        came_by: dict[Hashable, tuple[Hashable, Hashable, _Meeting]] = {}
        waiting = deque([start])
        while waiting:
            text = waiting.popleft()
            for other, meeting in self._met.get(text, {}).items():
                if other in came_by:
                    continue
                came_by[other] = (text, other, meeting)
                if other == end:
                    path = [came_by[end]]
                    while path[0][0] != start:
                        path.insert(0, came_by[path[0][0]])
                    return path
                waiting.append(other)
        return []


def _take_turns(circle: Iterable[tuple[Hashable, Hashable, _Meeting]]) -> bool:
    """Whether some text of the circle stands on the same lines on both ranks."""
    circle = list(circle)
    our_lines = {ours: meeting.our_lines for ours, _, meeting in circle}
    their_lines = {theirs: meeting.their_lines for _, theirs, meeting in circle}
    return any(our_lines[text] == their_lines[text] for text in our_lines)
