"""What a rank tells the driver when its function, or a session's cell, has come to an end."""

import os
import pickle
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import cloudpickle

from labkit.comm import Pace, Site, pending
from labkit.comm.callers import is_of_a_library
from labkit.launch.ranks.memory import Memory

_LAUNCH = Path(os.path.abspath(__file__)).parents[1]
# Their frames are below the reader's code in every traceback, and say nothing; an error that comes
# from them alone is about what was asked for, and is raised at no line of the reader's.
_LAUNCHER = {
    str(_LAUNCH / name)
    for name in (
        "ranks/rank.py",
        "session/rank.py",
        "session/command.py",
        "hosts/hosted_rank.py",
        "hosts/program.py",
        "payload/__init__.py",
        "request.py",
    )
}


@dataclass(frozen=True)
class Returned:
    """The function came back; its value is in the run's folder."""

    start_s: float
    end_s: float
    memory: Memory
    socket_bytes: int | None
    pace: Pace = field(default_factory=Pace)
    """Messages received over the links of a topology; none without one."""


@dataclass(frozen=True)
class Raised:
    """The function, or the pickling of its value, raised an exception."""

    type_name: str
    message: str
    traceback: str
    site: Site | None
    exception: bytes | None
    """The exception itself, where it can be pickled."""
    at_s: float
    came_from_a_communication: bool = False


def raised(error: BaseException) -> Raised:
    """The report of an exception; its traceback begins with the reader's own code."""
    at_s = time.monotonic()
    trace = _without_launcher(error.__traceback__)
    error = error.with_traceback(trace)
    try:
        exception = cloudpickle.dumps(error)  # its class may be of a cell
        pickle.loads(exception)  # some exceptions can be dumped, but not loaded
    except Exception:
        exception = None
    try:
        message, text = str(error), "".join(traceback.format_exception(error))
    except Exception as worse:
        message = f"(its __str__ raises {type(worse).__name__})"
        text = "".join(traceback.format_tb(trace)) + f"{type(error).__name__}: {message}"
    site = _site_of(trace) or _site_of_syntax(error)
    is_marked = pending.is_marked(error)
    return Raised(type(error).__name__, message, text, site, exception, at_s, is_marked)


def _without_launcher(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not the launcher's."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _LAUNCHER:
        trace = trace.tb_next
    return trace


def _site_of_syntax(error: BaseException) -> Site | None:
    """The line of the file that is no Python: nothing of it has run, so no frame is at it."""
    if not isinstance(error, SyntaxError) or not error.filename:
        return None
    return Site(error.filename, error.lineno or 0, "<module>")


def _site_of(trace: TracebackType | None) -> Site | None:
    """The innermost line of the traceback that is the reader's own, and no library's."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not is_of_a_library(frame.filename)]
    if not frames:
        return None
    frame = (own or frames)[-1]
    return Site(frame.filename, frame.lineno or 0, frame.name)
