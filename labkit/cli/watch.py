"""labkit watch: an exercise, checked at each save of its file."""

import importlib.util
import signal
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from labkit.cli.terminal import console
from labkit.cli.watching.keyboard import Keyboard
from labkit.cli.watching.screen import Screen
from labkit.cli.watching.signals import Signals
from labkit.cli.watching.watch_session import Session
from labkit.grade import catalog, course
from labkit.grade.checker import Checker
from labkit.grade.saves import Saves
from labkit.grade.workspace import find_workspace


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
    with ExitStack() as stack:
        # The screen last, for it is the first to go: the line of the shell comes below it.
        signals = stack.enter_context(Signals())
        checker = stack.enter_context(Checker())
        keyboard = stack.enter_context(Keyboard(sys.stdin.fileno()))
        saves = stack.enter_context(Saves(workspace.catalog.parent))
        screen = stack.enter_context(Screen(console()))
        parts = keyboard, signals, saves, checker, screen
        try:
            status = Session(name, workspace, parts, timeout).run()
        except OSError:
            if not keyboard.is_gone:
                raise
            status = 128 + signal.SIGHUP
    raise typer.Exit(status)


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
