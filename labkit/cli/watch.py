"""labkit watch: an exercise, checked at each save of its file, and keys.

    a save, or r    it is checked; keys that are pressed meanwhile are answered after that
    n, p            another exercise, and the same

Text scrolls and nothing is erased, so that verdicts and hints stay to be read and copied.
"""

import contextlib
import importlib.util
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.rule import Rule
from rich.text import Text

from labkit.cli.exercises import table_of_exercises
from labkit.cli.shown_in_terminal import show_note, show_verdict
from labkit.cli.terminal import console, progress_warnings_shown
from labkit.grade import catalog, course, desk
from labkit.grade.engine import check
from labkit.grade.workspace import Workspace, find_workspace

KEYS = {
    "h": "hint",
    "s": "solution",
    "n": "next",
    "p": "previous",
    "r": "check again",
    "e": "file",
    "l": "list",
    "q": "quit",
}
END = "\x04"  # Ctrl-D; also what a terminal that is gone is read as
# What an arrow or F5 sends, and Alt with another key: the last character is a letter, but no key.
_SEVERAL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O.|[^[O])?")
_TICK_MS = 200
_ASKED = "You have not passed it yet. Show the solution all the same? y/n"
# What a file that is missing, unreadable or broken raises; it may be mended while one watches.
_TROUBLE = (catalog.CatalogError, catalog.UnknownExercise, UnicodeDecodeError, OSError)


class CannotWatch(RuntimeError):
    """Something is missing that watching needs. The message says what to do instead."""


def watch(
    name: Annotated[
        str | None, typer.Argument(help="The exercise; where you left off, if left out.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds for each world size.")
    ] = 10.0,
) -> None:
    """Check an exercise each time you save it. Keys show hints, the solution, the next one."""
    workspace = find_workspace()
    name = course.where_to_go_on(workspace) if name is None else name
    catalog.get_exercise(name, workspace)
    _require_terminal(name)
    with keys_without_enter(sys.stdin.fileno()):
        Session(name, workspace, timeout).run()


def _require_terminal(name: str) -> None:
    once = f"to check it once: labkit check {name}"
    for stream, called in ((sys.stdin, "input"), (sys.stdout, "output")):
        if not stream.isatty():
            raise CannotWatch(
                f"labkit watch waits for keys and shows what it does, and standard {called} is no "
                f"terminal; {once}"
            )
    if importlib.util.find_spec("watchfiles") is None:
        raise CannotWatch(
            f"labkit watch needs the package watchfiles: make lab installs it; {once}"
        )


@contextlib.contextmanager
def keys_without_enter(descriptor: int) -> Iterator[None]:
    """A terminal without echo and lines for a block, which SIGTERM ends as Ctrl-C does."""
    before = termios.tcgetattr(descriptor)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGCONT, lambda *_: tty.setcbreak(descriptor))  # after Ctrl-Z
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # it is closed
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def pressed_keys(descriptor: int) -> str:
    """The keys pressed since the last call, arrows and the like left out; END after the last."""
    if not select.select([descriptor], [], [], 0)[0]:
        return ""
    try:
        pressed = os.read(descriptor, 1024) or END.encode()
    except OSError:
        return END
    return _SEVERAL.sub("", pressed.decode(errors="ignore")).lower()


class Session:
    """From the first check until a key or a signal ends it."""

    def __init__(self, name: str, workspace: Workspace, timeout_s: float) -> None:
        """name: of the exercise to begin with. timeout_s: of a check, for each world size."""
        self._name, self._workspace, self._timeout_s = name, workspace, timeout_s
        self._out = console()
        self._is_asked = False
        self._on_key: dict[str, Callable[[], None]] = {
            "h": lambda: show_note(desk.hint(self._name, workspace=workspace), self._out),
            "s": self._solution,
            "n": lambda: self._go_to(course.next_open(self._name, workspace)),
            "p": lambda: self._go_to(course.before(self._name, workspace)),
            "r": self._check,
            "e": lambda: self._out.print(Text(str(workspace.exercise(self._name))), soft_wrap=True),
            "l": lambda: self._out.print(table_of_exercises(self._out.width, marked=self._name)),
        }

    def run(self) -> None:
        """Check, wait and answer, until a key ends it."""
        from watchfiles import watch  # it brings anyio, for which other commands need not wait

        changes = watch(
            self._workspace.catalog.parent.resolve(),
            watch_filter=None,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
            recursive=False,
        )
        next(changes)  # from here on every save is seen
        self._answer(self._check)
        while True:
            if f"{self._name}.py" in {Path(path).name for _, path in next(changes)}:
                self._answer(self._check)
            for key in pressed_keys(sys.stdin.fileno()):
                if self._is_asked:
                    self._is_asked = False
                    self._answer(self._show_solution if key == "y" else lambda: None)
                elif key in ("q", END):
                    self._out.print()
                    return
                elif key in self._on_key:
                    self._answer(self._on_key[key])

    def _answer(self, call: Callable[[], None]) -> None:
        """`call()`, and the keys again. What goes wrong with a file is a line, and no end."""
        self._out.print()
        with progress_warnings_shown(self._out):
            try:
                call()
            except _TROUBLE as error:
                self._out.print(Text(f"labkit: {error}", style="red"))
        self._out.print()
        self._out.print(Text(_ASKED) if self._is_asked else self._keys())

    def _keys(self) -> Text:
        file = self._workspace.shown(self._workspace.exercise(self._name))
        keys = "  ".join(f"{key} {meaning}" for key, meaning in KEYS.items())
        return Text(f"Watching {file}\n{keys}", style="dim")

    def _check(self) -> None:
        self._is_asked = False
        self._out.print(Rule(Text(self._name, style="dim"), align="left", style="dim"))
        verdict = check(self._name, timeout_s=self._timeout_s, workspace=self._workspace)
        show_verdict(verdict, self._out)
        if verdict:
            num_passed, num_all = course.num_passed(self._workspace)
            following = course.next_open(self._name, self._workspace)
            then = "" if num_passed == num_all else f" n goes on to {following}."
            done = f"\n{num_passed} of {num_all} exercises passed.{then}"
            self._out.print(Text(done, style="bold green"))

    def _go_to(self, name: str) -> None:
        self._name = name
        self._check()

    def _solution(self) -> None:
        if desk.has_passed(self._name):
            self._show_solution()
        else:
            self._is_asked = True

    def _show_solution(self) -> None:
        note = desk.solution(self._name, confirm=True, workspace=self._workspace)
        show_note(note, self._out)
