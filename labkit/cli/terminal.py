"""The terminal that commands print to, and how verdicts, hints and solutions look there."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from labkit.arguments import printable
from labkit.grade.hints import Note
from labkit.grade.verdict import Outcome

if TYPE_CHECKING:
    from labkit.grade.verdict import Verdict


def console(*, stderr: bool = False) -> Console:
    """Make a console for each use: sys.stdout may be another one by then."""
    return Console(stderr=stderr, highlight=False)


@contextlib.contextmanager
def progress_warnings_shown(out: Console) -> Iterator[None]:
    """Print what warnings of a block say about progress, each once and without a line of labkit."""
    from labkit.progress import ProgressWarning  # it takes SQLite with it

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ProgressWarning)
        try:
            yield
        finally:
            found = (str(w.message) for w in caught if issubclass(w.category, ProgressWarning))
            for text in dict.fromkeys(found):
                out.print(Text(f"labkit: {printable(text)}", style="yellow"))


class UntilEnded:
    """A block of questions that Ctrl-D or Ctrl-C ends early: `status` is then 0 or 130."""

    is_early = False
    status = 0

    def __enter__(self) -> UntilEnded:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.is_early = kind is not None and issubclass(
            kind, (EOFError, KeyboardInterrupt, typer.Abort)
        )
        if self.is_early:
            console().print()
            self.status = 0 if kind is EOFError else 130
        return self.is_early

    def leave(self) -> None:
        """End the command with the status, after the summary."""
        if self.status:
            raise typer.Exit(self.status)


def counted(number: int, noun: str) -> str:
    """Write a count: `1 card`, `2 cards`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_STYLES = {
    Outcome.PASSED: "bold green",
    Outcome.NOT_ATTEMPTED: "bold",
    Outcome.OVER_BUDGET: "bold yellow",
}
# A call in Python, as the notebook's texts have it: hint("scan", 2)
_CALL = re.compile(r'\b(check|hint|solution|reset)\("(\w+)"((?:, [^()]+)?)\)')


def show_verdict(verdict: Verdict, out: Console) -> None:
    """Print the end of a check: headline, then what to know about it."""
    out.print(Text(verdict.headline, style=_STYLES.get(verdict.outcome, "bold red")))
    for label, text in verdict.paragraphs:
        body = Text(_in_a_terminal(text))
        if "\n" in text:
            out.print(Padding(Text(f"{label}:", style="bold"), (0, 0, 0, 2)))
            out.print(Padding(body, (0, 0, 0, 4)))
        else:
            out.print(Padding(Text(f"{label}: ", style="bold") + body, (0, 0, 0, 2)))


def show_note(note: Note, out: Console) -> None:
    """Print a text that the learner asked for; code in colours, unless it goes to a file.

    Then the file has the code as it is, and nothing else: the title goes to standard error.
    """
    if note.is_code and not out.file.isatty():
        Console(stderr=True, highlight=False).print(Text(note.title, style="bold"))
        out.file.write(note.text)
        return
    out.print(Text(note.title, style="bold"))
    if note.is_code:
        out.print(Syntax(note.text, "python", background_color="default", word_wrap=True))
    else:
        out.print(Text(_in_a_terminal(note.text)))


def _in_a_terminal(text: str) -> str:
    """Write calls in Python as commands: `hint("scan", 2)` becomes `labkit hint scan 2`."""
    return _CALL.sub(_as_command, text)


def _as_command(call: re.Match[str]) -> str:
    words = ["labkit", call[1], call[2]]
    for argument in call[3].split(", ")[1:]:
        option, equals, value = argument.partition("=")
        if argument == "confirm=True":
            words.append("--yes")
        elif equals:
            words.append(f"--{option} {value}")
        else:
            words.append(f"--file {argument}" if call[1] == "check" else argument)
    return " ".join(words)
