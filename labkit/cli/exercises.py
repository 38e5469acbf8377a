"""Commands about exercises: check, hint, solution, reset, list."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.arguments import printable
from labkit.cli.ctrl_c import ending_at_once
from labkit.cli.start import HOW_TO_MAKE_ONE
from labkit.cli.terminal import console, show_note, show_verdict
from labkit.grade import catalog, hints
from labkit.grade.submission import NothingToGrade
from labkit.grade.workspace import find_learners_workspace, find_workspace

Name = Annotated[str, typer.Argument(help="The exercise, as in `labkit list`.")]
_WIDTH_OF_TITLES, _WIDTH_OF_NOTEBOOKS = 100, 60


def check(
    name: Annotated[str | None, typer.Argument(help="The exercise. Default: all of them.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Check this file instead of exercises/NAME.py.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeat the inputs of an earlier check.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds for each world size.")
    ] = 10.0,
) -> None:
    """Grade an exercise on real ranks."""
    with ending_at_once():
        from labkit.grade.engine import check as run_check  # it takes torch with it

    if name is None and file is not None:
        raise typer.BadParameter("--file needs the name of the exercise that the file is for")
    if name is not None:
        verdict = run_check(name, file, seed=seed, timeout_s=timeout)
        show_verdict(verdict, console())
        if not verdict:
            raise typer.Exit(1)
        return
    find_learners_workspace()
    names = list(catalog.load_catalog())
    num_passed, unreadable = 0, []
    for each in names:
        try:
            verdict = run_check(each, seed=seed, timeout_s=timeout)
        except (NothingToGrade, UnicodeDecodeError, OSError) as error:
            console().print(Text(f"{each}: not checked\n  {error}", style="bold red"))
            unreadable.append(each)
        else:
            show_verdict(verdict, console())
            num_passed += bool(verdict)
    console().print(Text(f"\n{num_passed} of {len(names)} passed"))
    if unreadable:
        console().print(Text(f"Not checked: {', '.join(unreadable)}", style="red"))
    if num_passed < len(names):
        raise typer.Exit(1)


def hint(
    name: Name,
    number: Annotated[
        int | None, typer.Argument(min=1, max=3, help="1 to 3. Default: the next hint.")
    ] = None,
    context: Annotated[
        bool, typer.Option("--context", help="For a tutor: what was tried, and no new hint.")
    ] = False,
) -> None:
    """Show the next hint: the concept, the invariant, the first line that goes wrong."""
    show_note(hints.context(name) if context else hints.hint(name, number), console())


def solution(
    name: Name,
    yes: Annotated[
        bool, typer.Option("--yes", help="Show it without asking, also before a pass.")
    ] = False,
) -> None:
    """Show the solution: after a pass, or on confirmation, which is remembered."""
    catalog.get_exercise(name)
    if not yes and not hints.has_passed(name) and sys.stdin.isatty():
        yes = _confirmed(f"You have not passed {name} yet. Show the solution all the same? [y/N] ")
    note = hints.solution(name, confirm=yes)
    # Not into the file that standard output may be.
    show_note(note, console(stderr=not note.is_code))
    if not note.is_code:
        raise typer.Exit(1)


def _confirmed(question: str) -> bool:
    print(question, end="", file=sys.stderr, flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        return False


def reset(name: Name) -> None:
    """Put the stub back; your file is kept under exercises/backups."""
    show_note(hints.reset(name), console())


def list_exercises() -> None:
    """Show the exercises, in reading order, and how far you are."""
    show_list(console())
    if not find_workspace().has_learners_files:
        console().print(Text(f"To work on them: {HOW_TO_MAKE_ONE}"))


def show_list(out: Console) -> None:
    """All exercises, with their standing, and what else there is room for."""
    is_wide, standings = out.width >= _WIDTH_OF_TITLES, hints.standings()
    has_notebook = out.width >= _WIDTH_OF_NOTEBOOKS
    table = Table(box=box.SIMPLE)
    for heading in ("exercise", *["title"] * is_wide, *["notebook"] * has_notebook, "standing"):
        # Names are for typing and opening: whole, and on one line where there is room for that.
        is_name = heading in ("exercise", "notebook") and is_wide
        table.add_column(heading, overflow="fold", no_wrap=is_name)
    if has_notebook:
        table.add_column("difficulty", justify="right")
    for name, exercise in catalog.load_catalog().items():
        notebook = exercise.notebook if is_wide else exercise.notebook.partition("_")[0]
        cells = [name, *[exercise.title] * is_wide, *[notebook] * has_notebook]
        table.add_row(*cells, Text(printable(standings[name])), str(exercise.difficulty))
    out.print(table)
    num_passed = sum(map(hints.is_passed, standings.values()))
    scale = ". Difficulty is 1 to 5." if has_notebook else ""
    out.print(Text(f"{num_passed} of {len(standings)} passed{scale}"))
