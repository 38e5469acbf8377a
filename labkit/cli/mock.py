"""labkit mock: a timed interview in the terminal, and its report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.text import Text

from labkit.cli import cards as asking_cards
from labkit.cli import drills as asking_drills
from labkit.cli.terminal import console
from labkit.grade import catalog
from labkit.grade.engine import check
from labkit.grade.outcome import Outcome
from labkit.interview.cards import load_bank
from labkit.interview.drills import get_drill
from labkit.interview.drills.session import Round
from labkit.interview.mock import Interview, Item, Report, plan_interview

_SCORES = {"easy": 1.0, "good": 1.0, "hard": 0.5, "again": 0.0}


def mock(
    minutes: Annotated[int, typer.Option(help="How long, 6 to 240.")] = 45,
    level: Annotated[str, typer.Option(help="junior, senior or expert.")] = "senior",
    seed: Annotated[int | None, typer.Option(help="Ask the same again.")] = None,
    save: Annotated[
        list[Path] | None, typer.Option(help="Keep the report: FILE.md or FILE.html; repeatable.")
    ] = None,
) -> None:
    """Be interviewed: questions, drills, one exercise, a clock. Ctrl-D ends it with the report."""
    files = save or []
    _check_files(files)
    try:
        interview = Interview(plan_interview(minutes, level, seed))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    status = 0
    try:
        while (item := interview.next_item) is not None:
            _announce(interview, item)
            interview.take(item, *_TAKE[item.kind](item, interview.plan.seed))
    except (EOFError, KeyboardInterrupt, typer.Abort) as end:
        console().print()
        status = 0 if isinstance(end, EOFError) else 130
    report = interview.report()
    console().print(Markdown(report.markdown))
    for file in files:
        file.write_text(_as(file, report), encoding="utf-8")
        console().print(Text(f"The report is in {file}"), soft_wrap=True)
    if status:
        raise typer.Exit(status)


def _announce(interview: Interview, item: Item) -> None:
    left = max(0, round(interview.left_s / 60))
    place = f"{len(interview.taken) + 1} of {len(interview.plan.items)}"
    said = f"{place}: a {item.kind}, about {item.minutes} minutes. {left} left."
    if item.kind == "exercise":
        said = said.replace("a exercise", "an exercise")
    console().print(Text(said, style="bold cyan"))


def _question(item: Item, _: int) -> tuple[float, list[str]]:
    card = load_bank()[item.name]
    said = asking_cards.ask(card)
    missed = [point for place, point in enumerate(card.rubric, 1) if place not in said]
    return len(said) / len(card.rubric), missed


def _drill(item: Item, seed: int) -> tuple[float, list[str]]:
    asked = Round([get_drill(item.name)], seed).ask()
    rating = asking_drills.ask(asked, asked.drill.title)
    return _SCORES[rating], asked.traps


def _exercise(item: Item, _: int) -> tuple[float, list[str]]:
    """Checked as often as wanted, until it passes or is given up."""
    exercise, out = catalog.get_exercise(item.name), console()
    out.print(Text(f"{exercise.title}: write exercises/{item.name}.py.", style="bold"))
    while True:
        typed = input("Enter checks it; s skips. ").strip().lower()
        if typed in ("s", "skip"):
            return 0.0, ["skipped"]
        if typed:
            continue
        verdict = check(item.name)
        out.print(Text(str(verdict)))
        if verdict.outcome is Outcome.PASSED:
            return 1.0, []


_TAKE = {"question": _question, "drill": _drill, "exercise": _exercise}


def _check_files(files: list[Path]) -> None:
    """Before the interview, and not after 45 minutes."""
    for file in files:
        if file.suffix not in (".md", ".html"):
            raise typer.BadParameter(f"--save {file}: give a name that ends in .md or .html")
        if not file.parent.is_dir():
            raise typer.BadParameter(f"--save {file}: there is no folder {file.parent}")


def _as(file: Path, report: Report) -> str:
    return report.html if file.suffix == ".html" else report.markdown
