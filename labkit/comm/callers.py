"""The callers of a group: the frames from the call outwards, and whose code they are.

Each path to a call is looked up once. After that, a call costs the walk along its frames.
"""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import astuple
from itertools import islice
from types import CodeType, FrameType
from typing import NamedTuple

from labkit.comm.operation import Site


def _file_of(package: str) -> str | None:
    """Return the file of a package, if it is installed, without the seconds of importing it."""
    spec = importlib.util.find_spec(package)
    return None if spec is None else spec.origin


_COMM = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Frames in these trees are never "the reader's own line".
_LABKIT = os.path.dirname(os.path.dirname(_COMM)) + os.sep
_TORCH = _file_of("torch")
MACHINERY = (_LABKIT, *([] if _TORCH is None else [os.path.dirname(_TORCH) + os.sep]))
# Nor is a line in these, if there is one outside. torch wraps deprecated functions with
# typing_extensions.
_TYPING_EXTENSIONS = _file_of("typing_extensions")
_HELPERS = () if _TYPING_EXTENSIONS is None else (_TYPING_EXTENSIONS,)
_STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ", *_HELPERS)
# Files that torch.compile writes: by torch.fx, and by Inductor, in any folder.
_OF_FX = "<eval_with_key>"
_OF_INDUCTOR = re.compile(r"/(?P<folder>..)/c(?P=folder)[a-z2-7]{49}\.py$")
_RESUMED = "torch_dynamo_resume_in_"
_LAUNCH = tuple(os.path.join(_LABKIT, room) + os.sep for room in ("launch", "hosts"))


@functools.lru_cache(4096)
def is_machinery(file: str) -> bool:
    """Return whether a file is labkit's or torch's, or was written by torch.compile."""
    return file.startswith((*MACHINERY, _OF_FX)) or _OF_INDUCTOR.search(file) is not None


@functools.lru_cache(4096)
def is_of_a_library(file: str) -> bool:
    """Return whether a file is machinery, or Python's own."""
    return is_machinery(file) or file.startswith(_STANDARD)


class Place(NamedTuple):
    """The position of a frame at one moment. The frame itself goes on."""

    code: CodeType
    instruction: int
    line: int

    @property
    def site(self) -> Site:
        """The line and its text."""
        code, instruction, line = self
        text = call_text(code, instruction)
        return Site(code.co_filename, line, code.co_name, text)


def call_text(code: CodeType, instruction: int) -> str:
    """Return the code at `instruction` (a frame's f_lasti), on one line, without indentation.

    Empty where it is not known: sources that are gone, Python started with -X no_debug_ranges.
    """
    span = next(islice(code.co_positions(), instruction // 2, None), None)
    if span is None or None in span:
        return ""
    first, last, start, end = span
    assert first is not None and last is not None and start is not None and end is not None
    # Columns count bytes of UTF-8.
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return " ".join(b" ".join(lines).decode(errors="replace").split())


# The caller that handed over the work that runs in this context, on another thread.
_HANDED_OVER_AT: ContextVar[tuple[Place, ...]] = ContextVar("handed over at", default=())


def attribute_to_caller(context: Context) -> Context:
    """Return `context`, in which operations get the line that calls this as their own.

    For work on a thread, whose own stack begins in a library.
    """
    places = tuple(map(place, frames_outside(sys._getframe(1))))
    context.run(_HANDED_OVER_AT.set, places)
    return context


def submission_sites() -> tuple[Place, ...]:
    """Return the lines that handed this thread its work, from there outwards."""
    return _HANDED_OVER_AT.get()


def frames_outside(frame: FrameType | None) -> list[FrameType]:
    """Return the frames from the line that called the group out to the rank's function."""
    while frame is not None and frame.f_code.co_filename.startswith(_COMM):
        frame = frame.f_back
    frames = []
    while frame is not None and not frame.f_code.co_filename.startswith(_LAUNCH):
        frames.append(frame)
        resumes = frame.f_code.co_name.startswith(_RESUMED)
        frame = _caller_of_whole(frame) if resumes else frame.f_back
    return frames or [sys._getframe(1)]


def _caller_of_whole(frame: FrameType) -> FrameType | None:
    """Return the frame that called the whole function, of which this frame runs a part.

    torch.compile cuts a function where a graph ends, and one part calls the next.
    """
    whole, caller = _whole(frame.f_code), frame.f_back
    while (
        frame.f_code.co_name.startswith(_RESUMED)
        and caller is not None
        and _whole(caller.f_code) == whole
    ):
        frame, caller = caller, caller.f_back
    return caller


def _whole(code: CodeType) -> tuple[str, str]:
    """Return file and name of the function that `code` is, or is a part of: `..._in_step_at_12`."""
    name = code.co_name
    if name.startswith(_RESUMED):
        name = name.removeprefix(_RESUMED).rpartition("_at_")[0]
    return code.co_filename, name


def place(frame: FrameType) -> Place:
    """Return the position of a frame now."""
    return Place(frame.f_code, frame.f_lasti, frame.f_lineno)


class Call(NamedTuple):
    """A call of a group: the numbers of its site and of the reader's lines, and their texts."""

    site: int
    origin: int
    text: str


class Callers:
    """Finds the lines that call. number: gives the journal's number of a (kind, value)."""

    def __init__(self, number: Callable[[str, object], int]) -> None:
        self._number = number
        self._calls: dict[tuple[int, ...], tuple[Call, list[CodeType]]] = {}

    def find(self) -> Call:
        """Return the line that called the group, and the reader's own lines that led there."""
        frames, handed_over = frames_outside(sys._getframe(1)), submission_sites()
        # Code is looked up by id, because equal code in two files compares as equal. It is kept
        # alive, so that no other code can get the same id.
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
                "\n".join(site.description for site in own),
            )
            known = self._calls[key] = (call, [each.code for each in places])
        return known[0]
