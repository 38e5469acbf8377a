"""The code that is to be graded: how it is read, how it travels, and how a process loads it."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import pickle
import re
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle

from labkit.comm.operation import Site
from labkit.comm.words import listed
from labkit.grade.outcome import Finding, Outcome
from labkit.grade.stubs import arguments_of, cut_stub, is_unattempted
from labkit.grade.workspace import Workspace

SubmissionLike = str | Path | Callable[..., Any] | Sequence[Callable[..., Any]] | None


class SubmissionError(Exception):
    """The code under test does not have a function that it should have."""


@dataclass(frozen=True, slots=True)
class Code:
    """A file's text, or functions from a notebook's cells."""

    functions: tuple[str, ...]
    """The names of the functions that are graded."""
    source: str
    """The file's text, or what is known of the objects'; empty where nobody has it."""
    filename: str
    objects: bytes = b""
    """The functions themselves, pickled, in the order of `functions`; empty for a file."""
    num_arguments: Mapping[str, int] = field(default_factory=dict)
    """By function, as the solution has it; not asked of those that are not named."""

    def load(self, name: str) -> Callable[..., Any]:
        """The function `name`. Executes the code the first time: never in the driver.

        Raises SubmissionError where there is none, or it cannot be called as the solution's.
        """
        if self.objects:
            function: Any = pickle.loads(self.objects)[self.functions.index(name)]
        else:
            function = getattr(self._module(), name, None)
        if not callable(function):
            raise SubmissionError(
                f"{self.filename} defines no function {name}; keep the name of the stub"
            )
        if (count := self.num_arguments.get(name)) is None:
            return function
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError as error:
            arguments = "1 argument" if count == 1 else f"{count} arguments"
            raise SubmissionError(
                f"{name}{inspect.signature(function)} cannot be called with {arguments}: {error}; "
                "keep the signature of the stub"
            ) from None
        except ValueError:  # written in C, with a signature that nobody knows
            pass
        return function

    def _module(self) -> types.ModuleType:
        """The learner's file as it was when `check` read it."""
        if "submission" in sys.modules:
            return sys.modules["submission"]
        lines = self.source.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(self.source), None, lines, self.filename)
        module = types.ModuleType("submission")
        module.__file__ = self.filename
        sys.modules["submission"] = module  # dataclasses look their module up
        cloudpickle.register_pickle_by_value(module)  # a result may be of the learner's own class
        sys.path.insert(0, os.path.dirname(self.filename))
        exec(compile(self.source, self.filename, "exec"), module.__dict__)
        return module


class NothingToGrade(FileNotFoundError):
    """The file with the learner's code is not there, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The code under test. Reading it never executes it here: only fresh processes do that."""

    code: Code
    argument: str = ""
    """What `check` was given besides the name, as source code; empty for the learner's file."""
    is_own: bool = True
    """Whether it counts as progress: another file, such as the solution, does not."""
    unwritten: tuple[str, ...] = ()
    """Functions that are still stubs."""
    solution: str = ""
    """The text of the solution, of which mistakes are patches; empty where it is not there."""
    cannot_travel: str = ""
    """Why the functions cannot be pickled; empty where they can."""

    @classmethod
    def read(
        cls, given: SubmissionLike, name: str, functions: Sequence[str], workspace: Workspace
    ) -> Submission:
        """`given`: None (the learner's own file), a path, or functions, from a cell for example.

        functions: the names that the exercise `name` is graded on; a single one may be called
        otherwise. Raises NothingToGrade for a file that is missing or is not text, TypeError for
        other functions and for anything else.
        """
        file, own = workspace.solution(name), workspace.exercise(name)
        solution = file.read_text(encoding="utf-8") if file.exists() else ""
        if callable(given):
            given = [given]
        if isinstance(given, Sequence) and not isinstance(given, str):
            code, argument, trouble = _code_of(list(given), name, tuple(functions))
            is_own = True
        else:
            path = own if given is None else Path(given).expanduser().resolve()
            text = _text(path, name, given is None, workspace)
            code, trouble, is_own = Code(tuple(functions), text, str(path)), "", path == own
            argument = "" if is_own else f'"{workspace.shown(path)}"'
        code = replace(code, num_arguments=arguments_of(solution))
        # Without the solutions, which someone may have taken away, a refusal is still recognised.
        stub = cut_stub(solution, workspace.shown(file)) if solution else ""
        unwritten = tuple(each for each in functions if is_unattempted(code.source, each, stub))
        return cls(code, argument, is_own, unwritten, solution, trouble)

    def finding_before_running(self) -> Finding | None:
        """What can be said without running: still a stub, or no valid Python."""
        code = self.code
        if len(self.unwritten) == len(code.functions):
            what = listed(code.functions)
            return Finding(Outcome.NOT_ATTEMPTED, "still the stub", f"write {what} and check again")
        if self.cannot_travel:
            return Finding(
                Outcome.CRASHED,
                "cannot be sent to the ranks",
                f"the function refers to something that belongs to this process: "
                f"{self.cannot_travel}. Make locks, open files, threads and generators inside the "
                "function",
            )
        if code.objects:
            return None
        try:
            ast.parse(code.source, code.filename)
        except SyntaxError as error:
            line, text = error.lineno or 1, (error.text or "").strip()
            why = f"{error.msg}, in line {line}{text and f': {text}'}"
            where = Site(code.filename, line, "<module>")
            return Finding(Outcome.CRASHED, "is not valid Python", why, where=where)
        except ValueError as error:  # a null byte, before Python 3.12
            return Finding(Outcome.CRASHED, "is not valid Python", str(error))
        return None


def _text(path: Path, name: str, is_default: bool, workspace: Workspace) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        cure = f'; reset("{name}") in Python or `labkit reset {name}` in a terminal restores it'
        raise NothingToGrade(
            f"there is no {workspace.shown(path)}{cure if is_default else ''}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise NothingToGrade(f"{workspace.shown(path)} cannot be read: {error}") from error


def _code_of(
    given: list[Callable[..., Any]], name: str, functions: tuple[str, ...]
) -> tuple[Code, str, str]:
    """The functions as code; how a call of `check` names them; why they cannot be pickled."""
    names = [getattr(function, "__name__", name) for function in given]
    if len(functions) == len(given) == 1:
        shown = names[0] if names[0].isidentifier() else "..."  # a lambda has no name
        texts, filename = [_source_of(given[0], functions[0])], names[0]
    elif sorted(names) == sorted(functions):
        given = sorted(given, key=lambda function: functions.index(function.__name__))
        shown = f"[{', '.join(functions)}]"
        texts, filename = [_source_of(each, each.__name__) for each in given], name
    else:
        wanted = f"a list of the functions {listed(functions)}" if functions[1:] else "a function"
        raise TypeError(f"check({name!r}, ...) takes {wanted}; got {listed(names)}")
    try:
        objects, trouble = cloudpickle.dumps(tuple(given)), ""
    except Exception as error:
        objects, trouble = b"", str(error)
    return Code(functions, "\n".join(texts), filename, objects), shown, trouble


def _source_of(function: Callable[..., Any], name: str) -> str:
    """Its text, as if it were called `name`; empty where nobody has it."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""
    own = getattr(function, "__name__", name)
    return re.sub(rf"^(def|class) {re.escape(own)}\b", rf"\1 {name}", text, count=1, flags=re.M)
