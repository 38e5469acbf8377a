"""The command `labkit`: which commands there are, and how a call that is wrong ends."""

import sys

import typer
from rich.text import Text

from labkit.cli import (
    bank,
    cards,
    case,
    doctor,
    drills,
    exercises,
    mock,
    planner,
    profile,
    progress,
    puzzles,
    serve_command,
)
from labkit.cli import watch as watching
from labkit.cli.new import CannotBegin, new
from labkit.cli.terminal import console, progress_warnings_shown
from labkit.grade import catalog
from labkit.grade.puzzles import UnknownPuzzle
from labkit.grade.submission import NothingToGrade
from labkit.grade.workspace import WorkspaceNotFound
from labkit.interview.cards.sitting import UnknownCards
from labkit.interview.drills import UnknownDrill
from labkit.progress.exchange import ExchangeError

_USER_ERRORS = (
    catalog.UnknownExercise,
    catalog.CatalogError,
    UnknownPuzzle,
    UnknownCards,
    UnknownDrill,
    NothingToGrade,
    WorkspaceNotFound,
    ExchangeError,
    watching.CannotWatch,
    CannotBegin,
)

app = typer.Typer(
    help="The Distributed Training Lab: its exercises, and whether this machine can run it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (
    exercises.check,
    watching.watch,
    exercises.hint,
    exercises.solution,
    exercises.reset,
    puzzles.puzzle,
    cards.cards,
    drills.drill,
    case.case,
    mock.mock,
    doctor.doctor,
    doctor.preflight,
    planner.plan,
    profile.profile,
    serve_command.serve,
    bank.bank,
    progress.progress,
    progress.export,
):
    app.command()(_command)
app.command(name="list")(exercises.list_exercises)
app.command(name="import")(progress.import_progress)
app.add_typer(new, name="new")


def main() -> None:
    """The command `labkit`."""
    with progress_warnings_shown(console(stderr=True)):
        try:
            app()
        except _USER_ERRORS as error:
            console(stderr=True).print(Text(f"labkit: {error}", style="red"))
            sys.exit(2)
