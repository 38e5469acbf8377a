"""What code under test may not do, and how it hears of it: an error at its own line."""

import os
import sys
from types import FrameType

import torch

from labkit.comm.operation import Site

_LABKIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NOT_THE_LEARNERS = (_LABKIT, os.path.dirname(torch.__file__) + os.sep)
# Rooms of labkit that are on the stack of every rank: what runs it, checks it and communicates.
_ALWAYS_THERE = tuple(os.path.join(_LABKIT, room) + os.sep for room in ("comm", "grade", "launch"))


class BrokenRule(RuntimeError):
    """Code under test did what its exercise does not allow; `site` is the learner's line."""

    def __init__(self, message: str, site: Site) -> None:
        """`message`: what happened, and what to do instead."""
        super().__init__(message)
        self.site = site


class ForbiddenOperation(BrokenRule):
    """It called an operation that is not among those that the exercise allows."""


class CalledTheAnswer(BrokenRule):
    """It called labkit's own implementation of what it should implement."""


class ChangedInFlight(BrokenRule):
    """It wrote to a tensor between the isend and the wait() of that isend."""


class WrittenWhileReceiving(BrokenRule):
    """Something wrote to a buffer between the irecv and the wait() of that irecv."""


class NeverWaited(BrokenRule):
    """It returned while an operation was still under way."""


def learner_site() -> Site:
    """The innermost line on the stack that is neither labkit's nor torch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_LEARNERS):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def labkit_function_in_between() -> str | None:
    """The function of labkit that the learner called to get here, if it is not the group's own.

    On the whole stack: a group of the learner's own may stand between that function and ours.
    """
    called = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_LABKIT) and not file.startswith(_ALWAYS_THERE):
            called = f"{frame.f_globals.get('__name__', 'labkit')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return called
