"""The code that is to be graded: how it is read, how it travels, and how a process loads it."""

from __future__ import annotations

import ast
import linecache
import os
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from labkit.arguments import UserError
from labkit.comm.operation import Site, listed
from labkit.grade.stubs import cut_stub, is_unattempted
from labkit.grade.verdict import Finding, Outcome
from labkit.grade.workspace import Workspace

SubmissionLike = str | Path | Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class Code:
    """A file's text, or a function from a notebook's cell."""

    source: str
    """The file's text; empty for a function."""
    filename: str
    pickled: bytes = b""
    """The function; empty for a file."""

    def load(self, name: str) -> Callable[..., Any]:
        """Return the function `name`. The first call executes the code: never in the driver."""
        if self.pickled:
            function: Any = pickle.loads(self.pickled)
        else:
            function = getattr(self._module(), name, None)
        if not callable(function):
            raise AttributeError(
                f"{self.filename} defines no function {name}; keep the name of the stub"
            )
        return function

    def _module(self) -> types.ModuleType:
        """Return a module of the learner's file as it was when `check` read it."""
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


class NothingToGrade(UserError, FileNotFoundError):
    """The file with the learner's code is not there, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The code under test. Reading it never executes it here: only fresh processes do that."""

    code: Code
    argument: str
    """The second argument of `check`, as source code; empty for the learner's own file."""
    is_own: bool
    """True if it counts as progress: another file, such as the solution, does not."""
    functions: tuple[str, ...]
    """The names of the functions that are graded."""
    unwritten: tuple[str, ...] = ()
    """Functions that are still as in the stub."""
    solution: str = ""
    """The text of the solution, of which mistakes are patches; empty where it is not there."""

    @classmethod
    def read(
        cls, given: SubmissionLike, name: str, functions: Sequence[str], workspace: Workspace
    ) -> Submission:
        """Read the learner's own file (`given` is None), the file at a path, or a function.

        functions: the names that the exercise `name` is graded on. A function that is given for the
        only one may have another name. Raises NothingToGrade for a file that is missing or is not
        text. Raises TypeError for a function if the exercise has several, or if it cannot be
        pickled, and for a `given` of another type.
        """
        functions = tuple(functions)
        file, own = workspace.solution(name), workspace.exercise(name)
        solution = file.read_text(encoding="utf-8") if file.exists() else ""
        if callable(given):
            if len(functions) > 1:
                raise TypeError(
                    f"check({name!r}, ...) takes a file with the functions {listed(functions)}; "
                    f"write them into {workspace.shown(own)}"
                )
            called = getattr(given, "__name__", "")
            called = called if called.isidentifier() else "..."  # a lambda has no name
            try:
                code = Code("", called, cloudpickle.dumps(given))
            except Exception as error:
                raise TypeError(
                    f"{called} cannot be sent to the ranks: {error}. Make locks, open files, "
                    "threads and generators inside the function"
                ) from error
            return cls(code, called, True, functions, (), solution)
        path = own if given is None else Path(given).expanduser().resolve()
        try:
            code = Code(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            cure = f'; reset("{name}") in Python or `labkit reset {name}` in a terminal restores it'
            raise NothingToGrade(
                f"{workspace.shown(path)} cannot be read: {error}{cure if path == own else ''}"
            ) from None
        argument = "" if path == own else f'"{workspace.shown(path)}"'
        # Without the solution, a stub is recognised by the NotImplementedError that it raises.
        stub = cut_stub(solution, workspace.shown(file)) if solution else ""
        unwritten = tuple(each for each in functions if is_unattempted(code.source, each, stub))
        return cls(code, argument, path == own, functions, unwritten, solution)

    def finding_before_running(self) -> Finding | None:
        """Return the verdict that needs no run: still a stub, or no valid Python."""
        if self.unwritten == self.functions:
            what = listed(self.functions)
            return Finding(Outcome.NOT_ATTEMPTED, "still the stub", f"write {what} and check again")
        try:
            tree = ast.parse(self.code.source, self.code.filename)
        except SyntaxError as error:
            line, text = error.lineno or 1, (error.text or "").strip()
            why = f"{error.msg}, in line {line}{text and f': {text}'}"
            where = Site(self.code.filename, line, "<module>")
            return Finding(Outcome.CRASHED, "is not valid Python", why, hint=0, where=where)
        except ValueError as error:  # a null byte, before Python 3.12
            return Finding(Outcome.CRASHED, "is not valid Python", str(error), hint=0)
        if self.code.pickled:
            return None
        if not tree.body:
            why = f"write {listed(self.functions)}, or put the stub back with reset"
            return Finding(Outcome.NOT_ATTEMPTED, "the file is empty", why)
        bound = _names_bound_in(tree)
        missing = [name for name in self.functions if not {name, "*"} & bound]
        if missing:
            others = [node.name for node in tree.body if isinstance(node, _DEFINITIONS)]
            why = f"the file has no {listed(missing)}; keep the names of the stub"
            why += f". It defines {listed(others)}" * bool(others)
            return Finding(Outcome.CRASHED, f"defines no {missing[0]}", why, hint=0)
        return None


_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _names_bound_in(tree: ast.AST) -> set[str]:
    """Return the names that a program defines, assigns or imports; `*` for `import *`."""
    bound = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
            case ast.Name(ctx=ast.Store()):
                bound.add(node.id)
            case ast.alias():
                bound.add(node.asname or node.name)
    return bound
