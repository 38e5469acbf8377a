"""Noticing that two ranks make the same calls in another order, or for other elements of a loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

MOST_MEETINGS = 1024
"""Of calls, or elements, that differ: among so many an order is told."""


class Where(NamedTuple):
    """Where calls met: the n-th collective of a group."""

    group: str
    sequence: int


class Said(NamedTuple):
    """A call as the program says it: its text, and the lines on which it stands.

    Both go from the call itself out to the function that runs on the rank, so that `sync(weight)`
    and `sync(bias)` differ although both come to the same line in `sync`. `turn`: how many the rank
    has called before, on any group of the same members.
    """

    text: Hashable
    lines: Hashable
    turn: int = 0


class _Meeting(NamedTuple):
    where: Where
    ours: Said
    theirs: Said


class _Meetings:
    """What stood for what, as a graph from our words to theirs.

    Each search may go through all of them, and nothing else ends what they keep in memory. So its
    users hold no more than MOST_MEETINGS.
    """

    def __init__(self) -> None:
        self._met: dict[Hashable, dict[Hashable, _Meeting]] = {}
        self._theirs: set[Hashable] = set()
        self._num = 0

    @property
    def is_full(self) -> bool:
        return self._num >= MOST_MEETINGS

    def clear(self) -> None:
        self._met.clear()
        self._theirs.clear()
        self._num = 0

    def circle(self, meeting: _Meeting) -> list[_Meeting]:
        """Enter a meeting; those of a circle that it closes, itself the last, or []."""
        path = self._path(meeting.theirs.text, meeting.ours.text)
        its_like = self._met.setdefault(meeting.ours.text, {})
        self._num += meeting.theirs.text not in its_like
        its_like[meeting.theirs.text] = meeting
        self._theirs.add(meeting.theirs.text)
        return [*path, meeting] if path else []

    def _path(self, start: Hashable, end: Hashable) -> list[_Meeting]:
        """Meetings that lead from one text to another."""
        if end not in self._theirs:
            return []  # xs[1] for xs[0], xs[2] for xs[1], ...: a chain, and none leads back
        came_by: dict[Hashable, _Meeting] = {}
        waiting = deque([start])
        while waiting:
            text = waiting.popleft()
            for other, meeting in self._met.get(text, {}).items():
                if other in came_by:
                    continue
                came_by[other] = meeting
                if other == end:
                    path = [meeting]
                    while path[0].ours.text != start:
                        path.insert(0, came_by[path[0].ours.text])
                    return path
                waiting.append(other)
        return []


class OrderOfCalls:
    """Two ranks' calls side by side: notices the same calls in another order.

    Matching calls may read differently, as in `if rank == root: ... else: ...`. So a difference
    alone means nothing. But once A stood for B, and later B stands for A (or A for B, B for C, C
    for A), the same calls were made in another order: then some of them were mismatched.

    Unless A stands on the same lines on both ranks, and they come there at different times: a loop
    in which ranks take turns, one contributing and the other passing zeros, is right. On two groups
    of the same ranks it is the other way around: ranks that make the same calls at the same time
    have got hold of each other's group.

    Told among MOST_MEETINGS pairs of calls that read differently; then all are forgotten, and it
    begins anew.
    """

    def __init__(self) -> None:
        """Nothing differs yet."""
        self._meetings = _Meetings()

    def differ(self, ours: Said, theirs: Said, where: Where) -> list[Where]:
        """Enter two calls that met; where those of a circle met that this closes, or []."""
        if self._meetings.is_full:
            self._meetings.clear()  # texts made up at run time: no order can be told from them
        circle = self._meetings.circle(_Meeting(where, ours, theirs))
        if len({meeting.where.group for meeting in circle}) > 1:
            is_right = not _come_at_the_same_time(circle)
        else:
            is_right = _take_turns(circle)
        return [] if is_right else sorted(meeting.where for meeting in circle)


class OrderOfItems:
    """Elements of loops, by name: notices two ranks that go through the same ones in another order.

    Rank 0's weight meets rank 1's bias: names may differ, and that alone is no fault. But then rank
    0's bias meets rank 1's weight. Within one round only, in which each comes once: buffers that
    change roles from one round to the next may change names. Told among the first MOST_MEETINGS
    elements of a round whose names differ; the others of that round are not looked at.
    """

    def __init__(self) -> None:
        """Nothing differs yet."""
        self._meetings = _Meetings()
        self._seen: tuple[set[Hashable], set[Hashable]] = set(), set()

    def differ(self, ours: Hashable, theirs: Hashable, where: Where) -> list[Where]:
        """Enter two elements that met; where those of a circle met that this closes, or []."""
        if ours in self._seen[0] or theirs in self._seen[1]:
            self._meetings.clear()
            self._seen = set(), set()
        if self._meetings.is_full:
            return []  # forgotten names could not tell when the next round begins
        self._seen[0].add(ours)
        self._seen[1].add(theirs)
        meeting = _Meeting(where, Said(ours, None), Said(theirs, None))
        return sorted(each.where for each in self._meetings.circle(meeting))


def _come_at_the_same_time(circle: Sequence[_Meeting]) -> bool:
    """Whether both ranks make the calls of a circle in one order."""
    ours = sorted((meeting.ours.turn, str(meeting.ours.text)) for meeting in circle)
    theirs = sorted((meeting.theirs.turn, str(meeting.theirs.text)) for meeting in circle)
    return [text for _, text in ours] == [text for _, text in theirs]


def _take_turns(circle: Sequence[_Meeting]) -> bool:
    """Whether some text of the circle stands on the same lines on both ranks; yes for none."""
    our_lines = {meeting.ours.text: meeting.ours.lines for meeting in circle}
    their_lines = {meeting.theirs.text: meeting.theirs.lines for meeting in circle}
    return not circle or any(our_lines[text] == their_lines[text] for text in our_lines)
