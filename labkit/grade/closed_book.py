"""What functions that are asked must not do: run something, call the answer, or stop the watch.

A profile function sees every call; who switches it off is seen by an audit hook, which nobody can
take away again. Both stay until the process ends.
"""

import _thread
import inspect
import os
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from labkit.comm.operation import Site
from labkit.grade.answer_files import opened_answer
from labkit.grade.rules import BrokenRule

# Events of sys.addaudithook that start a process, or reach one.
_REFUSED = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
}

_LABKIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_THE_LEARNERS = (os.path.dirname(os.__file__) + os.sep, _LABKIT + os.sep, "<frozen ")


class Refused(BrokenRule):
    """Something that code which answers must not do; `name` is the diagnosis."""

    name = ""


class RanSomething(Refused):
    """Code that should answer started a process, or tried to reach one."""

    name = "runs something instead of answering"


class LookedItUp(Refused):
    """Code that should answer called what has the answer."""

    name = "calls the answer itself"


class StoppedTheWatch(Refused):
    """Code that should answer went where nobody sees what it calls."""

    name = "switches off the watch"


class ChangedArguments(Refused):
    """Code that should answer changed the caller's data."""

    name = "changes what it is given"


def refuse_processes(broken: list[Refused]) -> None:
    """From now on, what starts or reaches a process raises RanSomething."""

    def refuse(event: str, arguments: Sequence[Any]) -> None:
        if event in _REFUSED:
            site = _learners_line()
            message = (
                f"{event} at {site}: the functions are asked what would happen, and find out by "
                "thinking; to see it for yourself, run the program in a notebook"
            )
            broken.append(RanSomething(message, site))
            raise broken[-1]

    sys.addaudithook(refuse)


def refuse_answer_files(broken: list[Refused]) -> None:
    """From now on, code that opens labkit's source or a solution raises LookedItUp."""

    def refuse(event: str, arguments: Sequence[Any]) -> None:
        path = opened_answer(event, arguments)
        if path is not None:
            message = f"{path} has the answer in it; work it out"
            broken.append(LookedItUp(message, _learners_line()))
            raise broken[-1]

    sys.addaudithook(refuse)


def close_book(packages: Sequence[str], broken: list[Refused]) -> None:
    """From now on, a call of a function of labkit's `packages`, or modules, raises LookedItUp."""
    if not packages:
        return
    paths = [os.path.join(_LABKIT, package) for package in packages]
    closed = tuple(path + end for path in paths for end in (os.sep, ".py"))

    def refuse(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "c_call" and argument is _thread.start_new_thread:
            stopped("_thread.start_new_thread", code.co_filename)
        if event != "call" or not code.co_filename.startswith(closed):
            return
        # The bodies of modules and classes run when they are imported, and so does what they call:
        # that gives no answer away.
        if not code.co_flags & inspect.CO_OPTIMIZED or _is_import(frame):
            return
        name = f"{frame.f_globals.get('__name__', 'labkit')}.{code.co_name}"
        broken.append(LookedItUp(f"{name} is the answer itself; work it out", _learners_line()))
        raise broken[-1]

    def guard(event: str, arguments: Sequence[Any]) -> None:
        if event == "sys.setprofile" and not broken:  # else Python removes one that has raised
            stopped(event, sys._getframe(1).f_code.co_filename)

    def stopped(what: str, caller: str) -> None:
        if caller == threading.__file__ and threading.getprofile() is refuse:
            return  # a thread of the usual kind, which is watched from its start
        site = _learners_line(3)
        message = (
            f"{what} at {site}: from there on nobody would see whether the answer is called; the "
            "functions are asked for a calculation, which needs neither"
        )
        broken.append(StoppedTheWatch(message, site))
        raise broken[-1]

    threading.setprofile(refuse)
    sys.setprofile(refuse)
    sys.addaudithook(guard)


def _is_import(frame: FrameType) -> bool:
    """Whether an import is what the learner's code is at."""
    above = frame.f_back
    others = (*_NOT_THE_LEARNERS, "<string>")  # methods that dataclasses has written
    while above is not None and above.f_code.co_filename.startswith(others):
        if above.f_code.co_filename.startswith("<frozen importlib"):
            return True
        above = above.f_back
    return False


def _learners_line(depth: int = 2) -> Site:
    """The innermost line outside of Python's own library, its packages and labkit.

    depth: of the frames in between, this one's included.
    """
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_LEARNERS):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
