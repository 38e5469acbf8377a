"""Commands about the learner's memory: progress, export, import."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from labkit.cli.terminal import console
from labkit.interview.anki import export_anki
from labkit.interview.cards import load_bank
from labkit.interview.standing import Standing, Tally, standing
from labkit.progress import exchange

_BAR_WIDTH = 10


def progress() -> None:
    """Show how far you are: days in a row, what is due, mastery by topic, exercises."""
    out, found = console(), standing()
    out.print(Text(f"{_counted(found.streak, 'day')} in a row", style="bold"))
    due = [_counted(n, kind) for kind, n in found.due.items() if n]
    out.print(Text(f"Due now: {', '.join(due) or 'nothing'}"))
    if found.topics:
        out.print(_mastery_table(found))
        out.print(Text(f"Next: {found.next_topic}"))
    else:
        out.print(Text("Mastery needs the package fsrs: pip install fsrs", style="yellow"))
    out.print(_exercise_table(found))
    for what, tally in (("Predictions", found.predictions), ("Votes on claims", found.votes)):
        if tally.num_judged:
            out.print(Text(f"{what}: {_right(tally)}"))
    if found.drills:
        told = (f"{group} {_right(tally)}" for group, tally in found.drills.items())
        out.print(Text(f"Drills: {', '.join(told)}"))


def export(
    json: Annotated[Path | None, typer.Option(help="Every event, as JSON, to this file.")] = None,
    anki: Annotated[Path | None, typer.Option(help="The question cards, for Anki.")] = None,
) -> None:
    """Write your progress to a file, for a backup or another machine; or the cards, for Anki."""
    if json is None and anki is None:
        raise typer.BadParameter("say what to write: labkit export --json FILE, or --anki FILE")
    if json is not None:
        num_events = exchange.export_json(json)
        console().print(Text(f"{_counted(num_events, 'event')} in {json}"), soft_wrap=True)
    if anki is not None:
        try:
            num_notes = export_anki(anki, load_bank().values())
        except OSError as error:
            raise typer.BadParameter(f"{anki} cannot be written: {error.strerror}") from None
        console().print(Text(f"{_counted(num_notes, 'card')} in {anki}"), soft_wrap=True)


def import_progress(
    file: Annotated[Path, typer.Argument(help="What `labkit export --json` has written.")],
) -> None:
    """Add the progress in a file to yours. What you have stays; nothing is added twice."""
    done = exchange.import_json(file)
    text = f"{_counted(done.num_added, 'event')} added, {done.num_known} known already"
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


def _exercise_table(found: Standing) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("exercise", overflow="fold")
    for heading in ("tries", "hints"):
        table.add_column(heading, justify="right")
    for heading in ("solution", "passed"):
        table.add_column(heading)
    for row in found.exercises:
        passed = "" if row.passed_s is None else f"{datetime.fromtimestamp(row.passed_s):%Y-%m-%d}"
        shown = "shown" if row.solution_shown else ""
        table.add_row(Text(row.name), str(row.num_tries), str(row.num_hints), shown, passed)
    return table


def _right(tally: Tally) -> str:
    return f"{tally.num_right} of {tally.num_judged} right"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
