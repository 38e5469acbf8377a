"""A session of `labkit watch`: one exercise at a time, checked at each save, and keys.

It waits for four things at once, and does a little after each: keys, signals, saves, and answers
of the process that checks. So keys answer while a check runs, and nothing is cut in two.

    save, or r      a check begins; one that runs is stopped first      answer    shown
    n, p            another exercise, and the same
"""

import time
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import connection

from rich.console import Console
from rich.text import Text

from labkit.cli.exercises import table_of_exercises
from labkit.cli.shown_in_terminal import show_note, show_verdict
from labkit.cli.watching.keyboard import END, Keyboard
from labkit.cli.watching.screen import Screen, keys_lines
from labkit.cli.watching.signals import ENDING, SUSPENDING, Signals
from labkit.grade import course, desk
from labkit.grade.catalog import CatalogError, UnknownExercise
from labkit.grade.check_server import Answer
from labkit.grade.check_verdict import Verdict
from labkit.grade.checker import Checker
from labkit.grade.saves import Saves
from labkit.grade.workspace import Workspace
from labkit.progress import ProgressWarning

_TICK_S = 0.25
# What a file that is missing, unreadable or broken raises; it may be mended while one watches.
_TROUBLE = (CatalogError, UnknownExercise, UnicodeDecodeError, OSError)


class Session:
    """From the first check to the end; `run` returns the exit status."""

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        parts: tuple[Keyboard, Signals, Saves, Checker, Screen],
        timeout_s: float,
    ) -> None:
        """name: of the exercise to begin with. timeout_s: of a check, for each world size."""
        self._name, self._workspace, self._timeout_s = name, workspace, timeout_s
        self._keyboard, self._signals, self._saves, self._checker, self._screen = parts
        self._status: int | None = None
        self._begun_s = 0.0
        self._is_wanted = False  # a check, as soon as the one that runs has been stopped
        self._is_asked = False  # whether the solution is to be shown before a pass
        self._last = ""
        self._on_key: dict[str, Callable[[], None]] = {
            "h": self._hint,
            "s": self._solution,
            "n": lambda: self._go_to(course.next_open(self._name, self._workspace)),
            "p": lambda: self._go_to(course.before(self._name, self._workspace)),
            "r": self._check,
            "e": self._file,
            "l": self._list,
            "q": lambda: self._end(0),
            END: lambda: self._end(0),
        }

    def run(self) -> int:
        """Check, wait and answer, until a key or a signal ends it."""
        self._screen.out.print(Text("Each save of the file checks the exercise."))
        self._check()
        while self._status is None:
            self._below()
            heard = connection.wait(
                [
                    self._keyboard.descriptor,
                    self._signals.handle,
                    self._saves.handle,
                    *self._checker.handles,
                ],
                _TICK_S if self._checker.is_busy else None,
            )
            for number in self._signals.take():
                self._signalled(number)
            if self._keyboard.descriptor in heard:
                self._pressed(self._keyboard.read())
            if f"{self._name}.py" in self._saves.take():
                self._check()
            self._take()
        return self._status

    def _signalled(self, number: int) -> None:
        if number in ENDING:
            self._end(128 + number)
        elif self._status is None and number == SUSPENDING:
            with self._screen.given_back():
                self._keyboard.give_back()
                self._signals.suspend()
                self._keyboard.grab()

    def _pressed(self, keys: str) -> None:
        for key in keys:
            if self._status is not None:
                return
            if self._is_asked:
                self._guarded(partial(self._confirmed, key))
            elif key in self._on_key:
                self._guarded(self._on_key[key])

    def _guarded(self, call: Callable[[], None]) -> None:
        """`call()`; what goes wrong with a file or with the store is a line, and no end."""
        out = self._screen.out
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ProgressWarning)
            try:
                call()
            except _TROUBLE as error:
                if self._keyboard.is_gone:
                    raise
                out.print(Text(f"labkit: {error}", style="red"))
        told = (str(each.message) for each in caught if issubclass(each.category, ProgressWarning))
        for text in dict.fromkeys(told):
            out.print(Text(f"labkit: {text}", style="yellow"))

    def _check(self) -> None:
        if self._checker.is_busy:
            self._is_wanted = True
            self._checker.stop()
            return
        self._is_wanted, self._begun_s = False, time.monotonic()
        self._checker.begin(self._name, self._workspace, self._timeout_s)

    def _take(self) -> None:
        answer = self._checker.take()
        if answer is None:
            return
        if self._is_wanted:  # what was found is no longer about the file as it is
            self._check()
        else:
            self._guarded(lambda: self._show(answer))

    def _show(self, answer: Answer) -> None:
        with self._screen.out as out:  # all of it is drawn at once
            self._show_on(out, answer)

    def _show_on(self, out: Console, answer: Answer) -> None:
        self._screen.heading(self._name)
        for warning in answer.warnings:
            out.print(Text(f"labkit: {warning}", style="yellow"))
        if answer.verdict is None:
            self._last = "no verdict"
            trouble = answer.trouble or "the check was stopped from outside"
            out.print(Text(f"labkit: {trouble}", style="red"))
            return
        show_verdict(answer.verdict, out)
        self._last = answer.verdict.outcome.value
        if answer.verdict:
            self._passed(answer.verdict)

    def _passed(self, verdict: Verdict) -> None:
        self._is_asked = False  # the question begins with "You have not passed"
        num_passed, num_all = course.num_passed(self._workspace)
        following = course.next_open(verdict.exercise.name, self._workspace)
        done = f"{num_passed} of {num_all} exercises passed."
        then = "" if num_passed == num_all else f" n goes on to {following}."
        self._screen.out.print(Text(f"\n{done}{then}", style="bold green"))

    def _go_to(self, name: str) -> None:
        self._name, self._last = name, ""
        self._check()

    def _hint(self) -> None:
        self._screen.out.print()
        show_note(desk.hint(self._name, workspace=self._workspace), self._screen.out)

    def _solution(self) -> None:
        if desk.has_passed(self._name):
            self._show_solution()
        else:
            self._is_asked = True

    def _confirmed(self, key: str) -> None:
        self._is_asked = False
        if key == "y":
            self._show_solution()
        elif key in ("q", END):
            self._end(0)

    def _show_solution(self) -> None:
        note = desk.solution(self._name, confirm=True, workspace=self._workspace)
        self._screen.out.print()
        show_note(note, self._screen.out)

    def _file(self) -> None:
        path = self._workspace.exercise(self._name)
        self._screen.out.print()
        self._screen.out.print(Text(str(path)), soft_wrap=True)  # one line, to be copied

    def _list(self) -> None:
        out = self._screen.out
        out.print(table_of_exercises(out.width, marked=self._name))

    def _end(self, status: int) -> None:
        self._status = status

    def _below(self) -> None:
        """Draw the lines that change in place."""
        state = self._last
        if self._checker.is_busy:
            state = f"checking\u2026 {time.monotonic() - self._begun_s:.0f} s"
        file = self._workspace.shown(self._workspace.exercise(self._name))
        question = f"You have not passed {self._name} yet. Show the solution all the same? y/n"
        self._screen.show_below(
            Text(f"Watching {file}: {state}"),
            *([Text(question)] if self._is_asked else keys_lines(self._screen.out.width)),
        )
