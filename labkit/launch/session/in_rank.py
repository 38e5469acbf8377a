"""A rank of a session: it runs one command after another, and keeps its variables in between.

    fork server -> session_main: as rank_main, up to "ready" and "go"
    driver -> a command (a cell): run in the rank's namespace -> CommandResult or Raised
    driver closes the lifeline -> the rank exits

The driver makes a command (Cell, Push, Pull, Names) and sends it through the rank's own pipe.

SIGINT interrupts a command as Ctrl-C would, and does nothing between commands. It does not
interrupt a rank that is blocked in C++; the driver ends such ranks.
"""

from __future__ import annotations

import ast
import dataclasses
import keyword
import marshal
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType, ModuleType
from typing import Any, Protocol

import torch

from labkit import arguments
from labkit.comm import Group
from labkit.doctor import sources
from labkit.launch import payload
from labkit.launch.rank import (
    Raised,
    RankSpec,
    Returned,
    flush,
    leave_if_forked,
    measured,
    prepare_process,
    raised,
)

PREDEFINED = ("world", "rank", "world_size", "torch", "labkit")
"""The names that every rank starts with."""


@dataclass(frozen=True)
class CommandResult(Returned):
    """The end of a command. Its value is in the session's folder where it can travel."""

    text: str | None = None
    """The value's repr; None where there is none."""
    has_sent: bool = False


def session_main(
    spec: RankSpec, control: Connection, output: Connection, lifeline: Connection
) -> None:
    """Run a rank of a session for its whole life. Never returns."""
    prepare_process(spec, output, lifeline)
    process_id = os.getpid()
    interrupts = _Interrupts()
    try:
        spec.program()  # only sets the driver's environment and import path
        executor = _Executor(spec, spec.connected(), interrupts)
        control.send("ready")
        control.recv()  # "go"
        report: Returned | Raised = measured(lambda: None, spec.device)[1]
        while True:
            flush()
            control.send(report)
            report = executor.perform(control.recv())
            leave_if_forked(process_id)
    except (EOFError, OSError):
        pass  # the driver has closed the pipe
    except BaseException as error:
        control.send(raised(error))
    threading.Event().wait()  # until the lifeline ends


class _Executor:
    """Executes commands, and keeps the variables that they leave."""

    def __init__(self, spec: RankSpec, world: Group, interrupts: _Interrupts) -> None:
        """The variables are those of a module of their own, which pickle can find."""
        self._spec, self._world, self._interrupts = spec, world, interrupts
        main = sys.modules["__main__"] = ModuleType("__main__")
        self._namespace = main.__dict__
        self._namespace.update(
            world=world,
            rank=world.rank,
            world_size=world.size,
            torch=torch,
            labkit=sys.modules["labkit"],  # this module is in it
        )

    def perform(self, command: Command) -> CommandResult | Raised:
        """Run one command; its value goes to the session's folder."""
        try:
            return self._interrupts.during(lambda: self._answer(command))
        except BaseException as error:
            return raised(error)

    def _answer(self, command: Command) -> CommandResult:
        process_id = os.getpid()
        value, report = measured(lambda: command.run(self._namespace), self._spec.device)
        leave_if_forked(process_id)
        self._world.compare_remaining()
        report = dataclasses.replace(report, lateness=self._world.pop_lateness())
        if value is None:
            return CommandResult(**vars(report))
        return CommandResult(**vars(report), text=_cut(repr(value)), has_sent=self._send(value))

    def _send(self, value: Any) -> bool:
        """Write the value to the session's folder. Returns False if it cannot travel."""
        try:
            dumped = payload.dump_value(value)
        except Exception:
            return False
        if len(dumped) > _MAX_VALUE_BYTES:
            return False
        self._spec.directory.of_rank(self._spec.rank, "value").write_bytes(dumped)
        return True


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text)} characters)"


class _Interrupts:
    """Turns SIGINT into KeyboardInterrupt, while a command runs and only once."""

    def __init__(self) -> None:
        self._is_wanted = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._is_wanted:
            self._is_wanted = False
            raise KeyboardInterrupt

    def during(self, work: Callable[[], CommandResult]) -> CommandResult:
        """Return `work()`, which SIGINT interrupts."""
        signal.signal(signal.SIGINT, self._interrupt)  # the last command may have set its own
        self._is_wanted = True
        try:
            return work()
        finally:
            self._is_wanted = False


_MAX_TEXT = 20_000


_MAX_VALUE_BYTES = 64 * 2**20


class Command(Protocol):
    """A task for a rank in its namespace. Its value is the command's."""

    def run(self, namespace: dict[str, Any]) -> Any:
        """Run the command on the rank."""


@dataclass(frozen=True)
class Cell:
    """A cell's code, and the text that tracebacks show of it."""

    file: str
    lines: list[str]
    body: bytes
    value: bytes | None
    """The last expression, whose value is the cell's own; None where the cell ends otherwise."""

    @classmethod
    def of(cls, source: str, number: int, text: str | None = None, above: int = 0) -> Cell:
        """Compile `source`, which is `text` without its first `above` lines.

        Raises SyntaxError, with the line numbers of `text`, and TypeError for what is no text.
        """
        advice = "give the text of a cell, such as session.execute('rank + 1')"
        arguments.instance("source", source, str, advice)
        file = sources.name_of_cell(number)
        try:
            body, value = _compiled("\n" * above + source, file)
        except (RecursionError, MemoryError):
            raise SyntaxError(
                f"the cell {_start_of(source)!r} is nested too deeply for Python's compiler, such "
                "as a sum of thousands of terms; take it apart, or compute it in a loop"
            ) from None
        except ValueError as error:  # half a pair of surrogates; before Python 3.12 a null byte
            raise SyntaxError(
                f"the cell {_start_of(source)!r} holds a character that Python cannot read "
                f"({error}); write it as an escape, such as '\\x00'"
            ) from None
        # Each ends with a newline, as a file's lines do. Without it, carets are one column off.
        lines = [f"{line}\n" for line in (source if text is None else text).splitlines()]
        return cls(file, lines, body, value)

    def run(self, namespace: dict[str, Any]) -> Any:
        """The value of the last expression, or None."""
        sources.remember({self.file: self.lines})
        exec(marshal.loads(self.body), namespace)
        return None if self.value is None else eval(marshal.loads(self.value), namespace)


def _compiled(source: str, file: str) -> tuple[bytes, bytes | None]:
    """Compile all but a last expression, and that expression."""
    tree = ast.parse(source, file)
    last = tree.body[-1] if tree.body else None
    value = None
    if isinstance(last, ast.Expr):
        del tree.body[-1]
        expression = ast.Expression(last.value)
        value = marshal.dumps(compile(expression, file, "eval", dont_inherit=True))
    return marshal.dumps(compile(tree, file, "exec", dont_inherit=True)), value


def _start_of(source: str) -> str:
    return source if len(source) <= 40 else f"{source[:37]}..."


@dataclass(frozen=True)
class Push:
    """Set a variable of the ranks to a value of the driver's."""

    name: str
    data: bytes
    """The value, pickled by the driver."""

    def __post_init__(self) -> None:
        """ValueError or TypeError for a name that no variable can have."""
        _require_variable(self.name)

    def run(self, namespace: dict[str, Any]) -> None:
        """Unpickle the value: each rank has a copy of its own."""
        namespace[self.name] = pickle.loads(self.data)


@dataclass(frozen=True)
class Pull:
    """Get the value of a variable."""

    name: str

    def __post_init__(self) -> None:
        """ValueError or TypeError for a name that no variable can have."""
        _require_variable(self.name)

    def run(self, namespace: dict[str, Any]) -> tuple[bool, Any]:
        """(whether there is such a variable, its value)."""
        return self.name in namespace, namespace.get(self.name)


@dataclass(frozen=True)
class Names:
    """List the variables that cells have made."""

    def run(self, namespace: dict[str, Any]) -> list[str]:
        """Their names, in alphabetical order."""
        return sorted(
            name for name in namespace if not name.startswith("_") and name not in PREDEFINED
        )


def _require_variable(name: str) -> None:
    """Raise TypeError or ValueError for a name that no cell can have as a variable."""
    arguments.instance("name", name, str, "give the variable's name as text, such as 'x'")
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not the name of a variable; give one such as 'x'")
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} is a word of Python's own, and no variable; add a _: '{name}_'")
