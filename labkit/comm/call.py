"""A call of a group: the line that made it, and the reader's lines that led there.

Looked up once for each way to a call: what a call costs is then the walk along its frames.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import astuple
from types import CodeType
from typing import NamedTuple

from labkit.comm.callers import frames_outside, handed_over_at, is_of_a_library, place


class Call(NamedTuple):
    """Who calls a group: the numbers of its site and of the reader's lines, and what those say."""

    site: int
    origin: int
    text: str


class Callers:
    """Finds who calls. number: what a journal refers to (kind, value) by."""

    def __init__(self, number: Callable[[str, object], int]) -> None:
        self._number = number
        self._calls: dict[tuple[int, ...], tuple[Call, list[CodeType]]] = {}

    def find(self) -> Call:
        """The line that called the group, and the reader's own lines that led there."""
        frames, handed_over = frames_outside(sys._getframe(1)), handed_over_at()
        # Code is looked up by identity: equal code in two files compares as equal. It is kept, so
        # that no other code can come to have the same identity.
        parts: list[int] = []
        for frame in frames:
            parts += (id(frame.f_code), frame.f_lasti)
        for each in handed_over:
            parts += (id(each.code), each.instruction)
        key = tuple(parts)
        known = self._calls.get(key)
        if known is None:
            places = (*map(place, frames), *handed_over)
            sites = [each.site for each in places]
            own = [site for site in sites if not is_of_a_library(site.file)] or sites[-1:]
            call = Call(
                self._number("site", astuple(sites[0])),
                self._number("path", tuple(astuple(site) for site in own)),
                "\n".join(site.said for site in own),
            )
            known = self._calls[key] = (call, [each.code for each in places])
        return known[0]
