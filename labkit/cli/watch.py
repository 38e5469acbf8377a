"""labkit watch: an exercise, checked at each save of its file, and keys.

    a save, or r    it is checked; keys that are pressed meanwhile are answered after that
    n               the next exercise, and the same

Text scrolls and nothing is erased, so that verdicts and hints stay to be read and copied.
"""

import contextlib
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

from labkit.arguments import UserError
from labkit.cli.ctrl_c import ending_at_once
from labkit.cli.exercises import show_list
from labkit.cli.terminal import console, progress_warnings_shown, show_note, show_verdict
from labkit.grade import catalog, hints
from labkit.grade.workspace import Workspace, find_learners_workspace

END = "\x04"  # Ctrl-D; also what a terminal that is gone is read as
# An arrow, F5 or Alt with a key sends several: the last is a letter, but no key.
_SEVERAL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O.|[^[O])?")
_TICK_MS = 200
# Errors of a file that is missing, unreadable or broken; it may be mended while one watches.
_TROUBLE = (UnicodeDecodeError, OSError)


class CannotWatch(UserError, RuntimeError):
    """There is no terminal. The message says what to do instead."""


def watch(
    name: Annotated[
        str | None, typer.Argument(help="The exercise. Default: where you left off.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds for each world size.")
    ] = 10.0,
) -> None:
    """Check an exercise each time you save it. Keys show hints, the solution, the next one."""
    workspace = find_learners_workspace()
    name = hints.where_to_go_on() if name is None else name
    catalog.get_exercise(name)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CannotWatch(
            "watch waits for keys, so standard input and output must be a terminal; "
            f"to check {name} once: labkit check {name}"
        )
    session = Session(name, workspace, timeout)
    with keys_without_enter(sys.stdin.fileno()):
        session.run()


@contextlib.contextmanager
def keys_without_enter(descriptor: int) -> Iterator[None]:
    """A terminal without echo and lines for a block, which SIGTERM ends as Ctrl-C does.

    Neither comes between the end of the block and the terminal's former settings.
    """
    before = termios.tcgetattr(descriptor)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGCONT, lambda *_: tty.setcbreak(descriptor))  # after Ctrl-Z
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            signal.signal(number, signal.SIG_IGN)
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
        with ending_at_once():  # they take anyio and torch with them
            from watchfiles import watch

            from labkit.grade.engine import check
        self._watch, self._grade = watch, check
        self._name, self._workspace, self._timeout_s = name, workspace, timeout_s
        self._out = console()
        self._calls: dict[str, Callable[[], None]] = {  # each by its first letter; q quits
            "hint": lambda: show_note(hints.hint(self._name), self._out),
            "solution": lambda: show_note(
                hints.solution(self._name, workspace=workspace), self._out
            ),
            "next": self._go_on,
            "repeat": self._check,
            "list": lambda: show_list(self._out),
        }

    def run(self) -> None:
        """Check, wait and answer, until a key ends it."""
        changes = self._watch(
            self._workspace.exercises.resolve(),
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
                if key in ("q", END):
                    self._out.print()
                    return
                for word, call in self._calls.items():
                    if word[0] == key:
                        self._answer(call)

    def _answer(self, call: Callable[[], None]) -> None:
        """`call()`, and the keys again. What goes wrong with a file is a line, and no end."""
        self._out.print()
        with progress_warnings_shown(self._out):
            try:
                call()
            except _TROUBLE as error:
                self._out.print(Text(f"labkit: {error}", style="red"))
        self._out.print()
        file = self._workspace.shown(self._workspace.exercise(self._name))
        keys = "  ".join(f"{word[0]} {word}" for word in [*self._calls, "quit"])
        self._out.print(Text(f"Watching {file}\n{keys}", style="dim"))

    def _check(self) -> None:
        self._out.print(Rule(Text(self._name, style="dim"), align="left", style="dim"))
        verdict = self._grade(self._name, timeout_s=self._timeout_s, workspace=self._workspace)
        show_verdict(verdict, self._out)
        if verdict:
            known = hints.standings().values()
            done = f"\n{sum(map(hints.is_passed, known))} of {len(known)} exercises passed."
            self._out.print(Text(done, style="bold green"))

    def _go_on(self) -> None:
        self._name = hints.next_open(self._name)
        self._check()
