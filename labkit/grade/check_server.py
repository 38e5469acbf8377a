"""A process that checks exercises, one after the other, as it is asked through a pipe.

It ends with the pipe, and on Linux at once when the process that asks is killed; its ranks end with
it. SIGINT ends the check that runs, as Stop does in a notebook, and is nothing between two checks.
"""

import os
import signal
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NoReturn

from labkit.grade.catalog import CatalogError, UnknownExercise
from labkit.grade.check_verdict import Verdict
from labkit.grade.engine import check
from labkit.grade.submission import NothingToGrade
from labkit.grade.workspace import Workspace, WorkspaceNotFound
from labkit.launch.rank import end_with_parent
from labkit.launch.rank_process import warm_up
from labkit.progress import ProgressWarning

_SAID_WHOLE = (CatalogError, NothingToGrade, UnknownExercise, WorkspaceNotFound)


@dataclass(frozen=True, slots=True)
class Request:
    """One check."""

    name: str
    workspace: Workspace
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request. Neither verdict nor trouble: the check was stopped."""

    verdict: Verdict | None = None
    trouble: str = ""
    """Why there is no verdict."""
    warnings: tuple[str, ...] = ()
    """What could not be remembered, for example."""


def serve(descriptor: int, parent: int) -> NoReturn:
    """Answer requests until the pipe ends. descriptor: of the pipe; parent: who asks, by id."""
    signal.signal(signal.SIGINT, _between_checks)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked during the imports
    end_with_parent(parent)
    control = Connection(descriptor)
    warm_up()  # the first check finds the fork server at its imports, and not before them
    with suppress(EOFError, OSError):
        while True:
            control.send(_answered(control.recv()))
    os._exit(0)  # nothing is open; Python would take a second to take torch apart


def _between_checks(*_: object) -> None:
    """The check that SIGINT is meant for has ended, or begins: whoever wants it says so again."""


def _answered(request: Request) -> Answer:
    try:
        # What launches ranks takes heed of Python's own handler only.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return _checked(request)
        finally:
            signal.signal(signal.SIGINT, _between_checks)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, _between_checks)
        return Answer()


def _checked(request: Request) -> Answer:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ProgressWarning)
        try:
            verdict = check(request.name, timeout_s=request.timeout_s, workspace=request.workspace)
        except _SAID_WHOLE as error:
            return Answer(trouble=str(error))
        except Exception:  # a bug of ours; whoever watches goes on, and sees it
            return Answer(trouble=traceback.format_exc())
    texts = (str(each.message) for each in caught if issubclass(each.category, ProgressWarning))
    return Answer(verdict, warnings=tuple(dict.fromkeys(texts)))


def command(descriptor: int) -> list[str]:
    """The arguments, after the interpreter, of a process that serves this one.

    It finds labkit where this process does, which no variable of the environment may say: ranks
    would inherit it.
    """
    return [
        "-c",
        "import sys; sys.path[:] = sys.argv[3:]; "
        "from labkit.grade.check_server import serve; serve(int(sys.argv[1]), int(sys.argv[2]))",
        str(descriptor),
        str(os.getpid()),
    ]
