"""Commands about exercises: check, hint, solution, reset, list."""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from labkit.cli.terminal import console
from labkit.grade import catalog, desk
from labkit.grade.engine import check as run_check
from labkit.grade.outcome import Outcome
from labkit.grade.verdict import Verdict

Name = Annotated[str, typer.Argument(help="The exercise, as in `labkit list`.")]
_STYLES = {
    Outcome.PASSED: "bold green",
    Outcome.NOT_ATTEMPTED: "bold",
    Outcome.OVER_BUDGET: "bold yellow",
}
_WIDTH_OF_ALL_COLUMNS = 100
# A call in Python, as the notebook's texts have it: hint("scan", 2)
_CALL = re.compile(r'\b(check|hint|solution|reset)\("(\w+)"((?:, [^()]+)?)\)')


def check(
    name: Annotated[str | None, typer.Argument(help="The exercise; all, if left out.")] = None,
    file: Annotated[Path | None, typer.Option(help="Another file with the code.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeat the inputs of a check.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds for each world size.")
    ] = 10.0,
) -> None:
    """Grade an exercise on real ranks."""
    if name is None and file is not None:
        raise typer.BadParameter("--file needs the name of the exercise that the file is for")
    names = list(catalog.load_catalog()) if name is None else [name]
    verdicts = []
    for each in names:
        verdict = run_check(each, file, seed=seed, timeout_s=timeout)
        _show_verdict(verdict)
        verdicts.append(verdict)
    if len(verdicts) > 1:
        console().print(f"\n{sum(map(bool, verdicts))} of {len(verdicts)} passed")
    if not all(verdicts):
        raise typer.Exit(1)


def hint(
    name: Name,
    number: Annotated[
        int | None, typer.Argument(min=1, max=3, help="1 to 3; the next, if left out.")
    ] = None,
) -> None:
    """Show the next hint: the concept, the invariant, the first line that goes wrong."""
    _show_note(desk.hint(name, number))


def solution(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Show it before a pass, too.")] = False,
) -> None:
    """Show the solution: after a pass, or on confirmation, which is remembered."""
    catalog.get_exercise(name)
    if not yes and not desk.has_passed(name) and sys.stdin.isatty():
        yes = typer.confirm(f"You have not passed {name} yet. Show the solution all the same?")
    note = desk.solution(name, confirm=yes)
    _show_note(note)
    if not note.is_code:
        raise typer.Exit(1)


def reset(name: Name) -> None:
    """Put the stub back; your file is kept under exercises/backups."""
    _show_note(desk.reset(name))


def list_exercises() -> None:
    """Show the exercises, in reading order, and how far you are."""
    out = console()
    exercises = list(catalog.load_catalog().values())
    columns = {
        "exercise": [exercise.name for exercise in exercises],
        "title": [exercise.title for exercise in exercises],
        "notebook": [exercise.notebook for exercise in exercises],
        "standing": [desk.standing(exercise) for exercise in exercises],
    }
    if out.width < _WIDTH_OF_ALL_COLUMNS:
        del columns["title"], columns["notebook"]
    table = Table(box=box.SIMPLE)
    for heading in columns:
        # Names are for typing and opening: whole, and on one line where there is room for that.
        is_name = heading in ("exercise", "notebook") and "title" in columns
        table.add_column(heading, overflow="fold", no_wrap=is_name)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    out.print(table)


def _show_verdict(verdict: Verdict) -> None:
    out = console()
    out.print(Text(verdict.headline, style=_STYLES.get(verdict.outcome, "bold red")))
    for label, text in verdict.paragraphs:
        body = Text(_in_a_terminal(text))
        if "\n" in text:
            out.print(Padding(Text(f"{label}:", style="bold"), (0, 0, 0, 2)))
            out.print(Padding(body, (0, 0, 0, 4)))
        else:
            out.print(Padding(Text(f"{label}: ", style="bold") + body, (0, 0, 0, 2)))


def _show_note(note: desk.Note) -> None:
    out = console()
    out.print(Text(note.title, style="bold"))
    if note.is_code and sys.stdout.isatty():
        out.print(Syntax(note.text, "python", background_color="default"))
    else:
        # Code that is piped to a file must come out as it is, not wrapped at 80 columns.
        out.print(
            Text(note.text if note.is_code else _in_a_terminal(note.text)), soft_wrap=note.is_code
        )


def _in_a_terminal(text: str) -> str:
    """Calls in Python as commands: `hint("scan", 2)` becomes `labkit hint scan 2`."""
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
