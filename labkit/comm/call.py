"""A call of a group: the line that made it, the reader's lines that led there, the loops around.

Looked up once for each way to a call: what a call costs is then the walk along its frames.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from labkit.comm.agreement.callbacks import callback_in
from labkit.comm.agreement.loop_items import LoopItems, may_hold_elements
from labkit.comm.agreement.loops import Loop, loops_around
from labkit.comm.agreement.parameter_paths import Path, paths_at, to_parameters
from labkit.comm.agreement.takes import takes_of
from labkit.comm.callers import (
    Place,
    frames_outside,
    handed_over_at,
    is_foreign,
    is_of_a_library,
    place,
)


class Call(NamedTuple):
    """Who calls a group: the numbers of its site and of the reader's lines, and what those say."""

    site: int
    origin: int
    text: str
    lines: str
    loops: tuple[Loop, ...] = ()
    """The loops around it, the innermost first."""
    paths: tuple[Path, ...] = ()
    """What it mentions that was a parameter when it was first called."""


class Callers:
    """Finds who calls. number: what a journal refers to (kind, value) by."""

    def __init__(self, number: Callable[[str, object], int]) -> None:
        self._number = number
        self._calls: dict[tuple[int, ...], tuple[Call, list[CodeType]]] = {}
        self._loops: dict[tuple[int, ...], tuple[int, list[Loop], tuple[CodeType | None, ...]]] = {}
        self._items = LoopItems()

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
            call = self._new_call(places, num_frames=len(frames))
            call = _narrowed(call, frames)
            known = self._calls[key] = (call, [each.code for each in places])
        return known[0]

    def _new_call(self, places: Sequence[Place], num_frames: int) -> Call:
        """num_frames: how many of the places are on this thread's own stack."""
        sites = [each.site for each in places]
        own = [site for site in sites if not is_of_a_library(site.file)] or sites[-1:]
        own_frames = [n for n in range(num_frames) if not is_foreign(places[n].code.co_filename)]
        return Call(
            self._number("site", astuple(sites[0])),
            self._number("path", tuple(astuple(site) for site in own)),
            "\n".join(site.said for site in own),
            "\n".join(site.spot for site in own),
            tuple(loop for n in own_frames for loop in self._loops_at(places, n)),
            tuple(path for n in own_frames for path in paths_at(n, *places[n][:2])),
        )

    def _loops_at(self, places: Sequence[Place], number: int) -> list[Loop]:
        """`_loops`, worked out once: one frame of a program is on the way to many calls."""
        code, instruction, _ = places[number]
        callee = places[number - 1].code if number else None
        key = (id(code), instruction, id(callee))  # by identity, as above
        known = self._loops.get(key)
        if known is None:
            known = self._loops[key] = (number, _loops(places, number), (code, callee))
        then, loops, _ = known
        return [loop.moved(number - then) for loop in loops]

    def item(self, call: Call, x: torch.Tensor, *, is_sum: bool) -> str | None:
        """Which element of the loops around our caller `x` is; None where nothing says so.

        is_sum: where ranks' tensors are added up, those of a parameter go by its name too.
        """
        paths = call.paths if is_sum else ()
        if not (call.loops or paths):
            return None
        return self._items.of(x, frames_outside(sys._getframe(1)), call.loops, paths)

    def parameter(self, call: Call, x: torch.Tensor) -> str | None:
        """Which parameter of a model `x` is, or is made of; None where nothing says so."""
        if not call.paths:
            return None
        return self._items.parameter(x, frames_outside(sys._getframe(1)), call.loops, call.paths)


def _loops(places: Sequence[Place], number: int) -> list[Loop]:
    """What the n-th frame goes through, or takes out, or has a built-in go through."""
    code, instruction, _ = places[number]
    callee = places[number - 1].code if number else None
    handed = callback_in(number, code, instruction, callee)
    loops = loops_around(number, code, instruction) + takes_of(number, code, instruction, callee)
    return loops if handed is None else [handed, *loops]


def _narrowed(call: Call, frames: Sequence[FrameType]) -> Call:
    """Without what has to do with no tensor: most loops are over numbers, and cost nothing then."""
    if sys.gettrace() is not None:
        return call._replace(loops=(), paths=())  # see loop_items.py
    loops = tuple(loop for loop in call.loops if may_hold_elements(loop, frames))
    return call._replace(loops=loops, paths=to_parameters(call.paths, frames))
