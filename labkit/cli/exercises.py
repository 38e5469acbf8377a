"""Commands about exercises: check, hint, solution, reset, list."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from labkit.cli.shown_in_terminal import show_note, show_verdict
from labkit.cli.terminal import console
from labkit.grade import catalog, desk
from labkit.grade.engine import check as run_check

Name = Annotated[str, typer.Argument(help="The exercise, as in `labkit list`.")]
_WIDTH_OF_TITLES, _WIDTH_OF_NOTEBOOKS = 100, 60


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
        show_verdict(verdict, console())
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
    show_note(desk.hint(name, number), console())


def solution(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Show it before a pass, too.")] = False,
) -> None:
    """Show the solution: after a pass, or on confirmation, which is remembered."""
    catalog.get_exercise(name)
    if not yes and not desk.has_passed(name) and sys.stdin.isatty():
        yes = typer.confirm(f"You have not passed {name} yet. Show the solution all the same?")
    note = desk.solution(name, confirm=yes)
    show_note(note, console())
    if not note.is_code:
        raise typer.Exit(1)


def reset(name: Name) -> None:
    """Put the stub back; your file is kept under exercises/backups."""
    show_note(desk.reset(name), console())


def list_exercises() -> None:
    """Show the exercises, in reading order, and how far you are."""
    out = console()
    out.print(table_of_exercises(out.width))


def table_of_exercises(width: int) -> Table:
    """All of them, with their standing, and what else there is room for. width: in columns."""
    is_wide, standings = width >= _WIDTH_OF_TITLES, desk.standings()
    has_notebook = width >= _WIDTH_OF_NOTEBOOKS
    table = Table(box=box.SIMPLE)
    for heading in ("exercise", *["title"] * is_wide, *["notebook"] * has_notebook, "standing"):
        # Names are for typing and opening: whole, and on one line where there is room for that.
        is_name = heading in ("exercise", "notebook") and is_wide
        table.add_column(heading, overflow="fold", no_wrap=is_name)
    for name, exercise in catalog.load_catalog().items():
        notebook = exercise.notebook if is_wide else exercise.notebook.partition("_")[0]
        cells = [name, *[exercise.title] * is_wide, *[notebook] * has_notebook, standings[name]]
        table.add_row(*cells)
    return table
