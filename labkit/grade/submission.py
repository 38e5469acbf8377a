"""The code that is to be graded: a file's text, or a function."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from labkit.comm.operation import Site
from labkit.grade.outcome import Finding, Outcome
from labkit.grade.stubs import is_unattempted
from labkit.grade.workspace import Workspace

SubmissionLike = str | Path | Callable[..., Any] | None


class NothingToGrade(FileNotFoundError):
    """The file with the learner's code is not there, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The code under test. Reading it never executes it here: only ranks do that."""

    function: str
    """The name of the function that is graded."""
    source: str | None
    filename: str
    function_object: Callable[..., Any] | None = None
    argument: str = ""
    """What `check` was given besides the name, as source code; empty for the learner's file."""
    is_own: bool = True
    """Whether it counts as progress: another file, such as the solution, does not."""

    @classmethod
    def read(cls, given: SubmissionLike, name: str, workspace: Workspace) -> "Submission":
        """`given`: None (the learner's own file), a path, or a function, from a cell for example.

        Raises NothingToGrade for a file that is missing or is not text, TypeError for anything
        else.
        """
        if callable(given):
            given_name = getattr(given, "__name__", name)
            argument = given_name if given_name.isidentifier() else "..."  # a lambda has no name
            return cls(name, _source_of(given), given_name, given, argument)
        if given is not None and not isinstance(given, str | Path):
            raise TypeError(
                f"check({name!r}, ...) takes a function or the path of a file; "
                f"got a {type(given).__name__}"
            )
        path = workspace.exercise(name) if given is None else Path(given).expanduser().resolve()
        try:
            is_own = path == workspace.exercise(name)
            argument = "" if is_own else f'"{workspace.shown(path)}"'
            return cls(name, path.read_text(encoding="utf-8"), str(path), None, argument, is_own)
        except FileNotFoundError:
            cure = f'; reset("{name}") in Python or `labkit reset {name}` in a terminal restores it'
            raise NothingToGrade(
                f"there is no {workspace.shown(path)}{cure if given is None else ''}"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise NothingToGrade(f"{workspace.shown(path)} cannot be read: {error}") from error

    def finding_before_running(self) -> Finding | None:
        """What can be said without running: still a stub, or no valid Python."""
        name = getattr(self.function_object, "__name__", self.function)
        if self.source is not None and is_unattempted(self.source, name):
            return Finding(
                Outcome.NOT_ATTEMPTED,
                "still the stub",
                f"write {self.function} and check again",
            )
        if self.function_object is not None:
            return _cannot_travel(self.function_object)
        if self.source is None:
            return None
        try:
            ast.parse(self.source, self.filename)
        except (SyntaxError, ValueError) as error:  # ValueError: a null byte
            return _syntax_error(error, self.filename)
        return None


def _cannot_travel(function: Callable[..., Any]) -> Finding | None:
    try:
        cloudpickle.dumps(function)
    except Exception as error:
        return Finding(
            Outcome.CRASHED,
            "cannot be sent to the ranks",
            f"the function refers to something that belongs to this process: {error}. Make locks, "
            "open files, threads and generators inside the function",
        )
    return None


def _source_of(function: Callable[..., Any]) -> str | None:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return None


def _syntax_error(error: SyntaxError | ValueError, filename: str) -> Finding:
    line = getattr(error, "lineno", None) or 1
    text = (getattr(error, "text", None) or "").rstrip()
    message = getattr(error, "msg", None) or str(error)
    return Finding(
        Outcome.CRASHED,
        "is not valid Python",
        f"{message}, in line {line}{f': {text.strip()}' if text else ''}",
        where=Site(filename, line, "<module>"),
    )
