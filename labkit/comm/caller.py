"""Who calls a group: the line that does, and the reader's own lines that led there.

    frames, from the call outwards    comm/ is left out, and so is everything from launch/ on
    site                              the first of them
    origin                            those that are neither of a library nor of the lab

Looked up once for each place in the program: a later call from there costs a walk over the stack.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import astuple
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from labkit.comm.agreement.call_text import call_text
from labkit.comm.operation import Site

_COMM = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Frames in these trees are never "the reader's own line".
_LABKIT = os.path.dirname(os.path.dirname(_COMM)) + os.sep
MACHINERY = (_LABKIT, os.path.dirname(torch.__file__) + os.sep)
# And in these a line is never the reader's own while there is one outside.
LIBRARIES = (*MACHINERY, os.path.dirname(os.__file__) + os.sep, "<frozen ")
_LAUNCH = os.path.join(_LABKIT, "launch") + os.sep


class _Place(NamedTuple):
    """Where a frame was when somebody looked: it goes on meanwhile."""

    code: CodeType
    instruction: int
    line: int


# Who handed over the work that runs in this context, on another thread.
_HANDED_OVER_AT: ContextVar[tuple[_Place, ...]] = ContextVar("handed over at", default=())


def as_handed_over_here(context: Context) -> Context:
    """`context`, in which operations are those of whoever calls this: their line is its line.

    For a thread, whose own stack begins in a library.
    """
    places = tuple(map(_place, _frames_outside(sys._getframe(1))))
    context.run(_HANDED_OVER_AT.set, places)
    return context


class Call(NamedTuple):
    """Who calls a group: the numbers of its site and of the reader's lines, and what those say."""

    site: int
    origin: int
    text: str
    lines: str


class Callers:
    """The calls of a rank, as they were found."""

    def __init__(self, number_of: Callable[[str, object], int]) -> None:
        """number_of: (kind, name) -> the number by which records refer to it."""
        self._number_of = number_of
        self._calls: dict[tuple[int, ...], tuple[Call, list[CodeType]]] = {}

    def find(self) -> Call:
        """The line that called the group, and the reader's own lines that led there."""
        frames, handed_over_at = _frames_outside(sys._getframe(1)), _HANDED_OVER_AT.get()
        # Code is looked up by identity: equal code in two files compares as equal. It is kept, so
        # that no other code can come to have the same identity.
        key = tuple(part for frame in frames for part in (id(frame.f_code), frame.f_lasti))
        key += tuple(
            part for place in handed_over_at for part in (id(place.code), place.instruction)
        )
        known = self._calls.get(key)
        if known is None:
            places = (*map(_place, frames), *handed_over_at)
            sites = [_site(place) for place in places]
            own = [site for site in sites if not site.file.startswith(LIBRARIES)] or sites[-1:]
            call = Call(
                self._number_of("site", astuple(sites[0])),
                self._number_of("path", tuple(astuple(site) for site in own)),
                "\n".join(site.said for site in own),
                "\n".join(map(str, own)),
            )
            known = self._calls[key] = (call, [place.code for place in places])
        return known[0]


def _frames_outside(frame: FrameType | None) -> list[FrameType]:
    """From the line that called the group out to the function that runs on the rank."""
    while frame is not None and frame.f_code.co_filename.startswith(_COMM):
        frame = frame.f_back
    frames = []
    while frame is not None and not frame.f_code.co_filename.startswith(_LAUNCH):
        frames.append(frame)
        frame = frame.f_back
    return frames or [sys._getframe(1)]


def _place(frame: FrameType) -> _Place:
    return _Place(frame.f_code, frame.f_lasti, frame.f_lineno)


def _site(place: _Place) -> Site:
    code, instruction, line = place
    return Site(code.co_filename, line, code.co_name, call_text(code, instruction))
