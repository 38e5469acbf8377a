"""Commands about the learner's memory: progress, export, import."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from labkit.cli.start import HOW_TO_MAKE_ONE
from labkit.cli.terminal import console, counted
from labkit.grade.workspace import find_workspace
from labkit.interview.anki import anki_text, export_anki
from labkit.interview.cards import load_bank
from labkit.interview.summary import Standing, Tally, notebooks_of, standing
from labkit.progress import exchange
from labkit.progress.event import Event
from labkit.progress.statistics import ExerciseRow

_BAR_WIDTH = 10
_MOST_INTERVIEWS = 5
_OUTPUT = Path("-")


def progress() -> None:
    """Show how far you are: days in a row, what is due, mastery by topic, exercises."""
    out, found = console(), standing()
    out.print(Text(f"{counted(found.streak, 'day')} in a row", style="bold"))
    due = [counted(n, kind) for kind, n in found.due.items() if n]
    out.print(Text(f"Due now: {', '.join(due) or 'nothing'}"))
    if found.topics:
        out.print(_mastery_table(found))
        out.print(Text(f"Next: {_next(found)}"))
    else:
        out.print(Text("Mastery needs the package fsrs: pip install fsrs", style="yellow"))
    started = [row for row in found.exercises if row.is_started]
    if started:
        out.print(_exercise_table(started))
    not_started = len(found.exercises) - len(started)
    out.print(Text(f"Exercises not started: {not_started}; `labkit list` shows them"))
    if not find_workspace().has_learners_files:
        out.print(Text(f"To work on them: {HOW_TO_MAKE_ONE}"))
    for what, tally in (("Predictions", found.predictions), ("Votes on claims", found.votes)):
        if tally.num_judged:
            out.print(Text(f"{what}: {_right(tally)}"))
    if found.drills:
        listed = (f"{group} {_right(tally)}" for group, tally in found.drills.items())
        out.print(Text(f"Drills: {', '.join(listed)}"))
    for each in found.interviews[:_MOST_INTERVIEWS]:
        day = f"{datetime.fromtimestamp(each.at_s):%Y-%m-%d}"
        out.print(Text(f"Mock interview of {day}: {_score(each)}"))


def export(
    json: Annotated[
        Path | None,
        typer.Option(help="Write your progress, as JSON, to this file; - for standard output."),
    ] = None,
    anki: Annotated[
        Path | None,
        typer.Option(help="The same for the question cards, for Anki."),
    ] = None,
) -> None:
    """Write your progress to a file, for a backup or another machine; or the cards, for Anki."""
    if json is None and anki is None:
        raise typer.BadParameter("say what to write: labkit export --json FILE, or --anki FILE")
    if json == anki == _OUTPUT:
        raise typer.BadParameter("standard output takes one of them: --json - or --anki -")
    if json == _OUTPUT:
        text, num_events = exchange.exported()
        sys.stdout.write(text)
    elif json is not None:
        num_events = exchange.export_json(json)
    if json is not None:
        _tell_written(json, counted(num_events, "event"))
    if anki is not None:
        cards = list(load_bank().values())
        try:
            if anki == _OUTPUT:
                sys.stdout.write(anki_text(cards))
            else:
                export_anki(anki, cards)
        except OSError as error:
            raise typer.BadParameter(f"{anki} cannot be written: {error.strerror}") from None
        _tell_written(anki, counted(len(cards), "card"))


def _tell_written(path: Path, what: str) -> None:
    """On standard error, where standard output is the file."""
    if path == _OUTPUT:
        console(stderr=True).print(Text(f"{what} written"))
    else:
        console().print(Text(f"{what} in {path}"), soft_wrap=True)


def import_progress(
    file: Annotated[
        Path, typer.Argument(help="A file of `labkit export --json`; - for standard input.")
    ],
) -> None:
    """Add the progress in a file to yours. What you have stays; nothing is added twice."""
    done = exchange.import_json(Path("/dev/stdin") if file == _OUTPUT else file)
    text = f"{counted(done.num_added, 'event')} added, {done.num_known} known already"
    console().print(Text(text))


def _mastery_table(found: Standing) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("topic", overflow="fold")
    table.add_column("mastery", no_wrap=True)
    for heading in ("practised", "due"):
        table.add_column(heading, justify="right")
    for topic, known in found.topics.items():
        filled = round(known.value * _BAR_WIDTH)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        of_all = f"{known.num_seen} of {known.num_subjects}"
        table.add_row(Text(topic), Text(f"{bar} {known.value:4.0%}"), of_all, str(known.num_due))
    return table


def _next(found: Standing) -> str:
    """The topic, and where it is taught."""
    names = notebooks_of(found.next_topic) if found.next_topic else []
    paths = ", ".join(f"notebooks/{name}.ipynb" for name in names)
    return f"{found.next_topic} ({paths})" if paths else str(found.next_topic)


def _score(interview: Event) -> str:
    """For an event that an import may have brought, too."""
    score = interview.detail.get("score")
    return f"{score:.0%}" if isinstance(score, (int, float)) else "without a score"


def _exercise_table(rows: Sequence[ExerciseRow]) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("exercise", overflow="fold")
    for heading in ("tries", "hints"):
        table.add_column(heading, justify="right")
    for heading in ("solution", "passed"):
        table.add_column(heading)
    for row in rows:
        passed = "" if row.passed_s is None else f"{datetime.fromtimestamp(row.passed_s):%Y-%m-%d}"
        shown = "shown" if row.solution_shown else ""
        table.add_row(Text(row.name), str(row.num_tries), str(row.num_hints), shown, passed)
    return table


def _right(tally: Tally) -> str:
    return f"{tally.num_right} of {tally.num_judged} right"
