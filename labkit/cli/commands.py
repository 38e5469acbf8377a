"""The command `labkit`: which commands there are, and how a call that is wrong ends."""

import sys
import warnings

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
from labkit.cli.terminal import console
from labkit.grade import catalog
from labkit.grade.puzzles import UnknownPuzzle
from labkit.grade.submission import NothingToGrade
from labkit.grade.workspace import WorkspaceNotFound
from labkit.interview.cards.sitting import UnknownCards
from labkit.interview.drills import UnknownDrill
from labkit.progress import ProgressWarning
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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ProgressWarning)
        try:
            app()
        except _USER_ERRORS as error:
            console(stderr=True).print(Text(f"labkit: {error}", style="red"))
            sys.exit(2)
        finally:
            _show_warnings(caught)


def _show_warnings(caught: list[warnings.WarningMessage]) -> None:
    """What each warning about progress says, without the line of labkit that said it."""
    for text in dict.fromkeys(
        str(w.message) for w in caught if issubclass(w.category, ProgressWarning)
    ):
        console(stderr=True).print(Text(f"labkit: {text}", style="yellow"))
