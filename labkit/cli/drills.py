"""labkit drill: numeric questions with fresh numbers, judged one by one."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit.cli.terminal import console
from labkit.interview.drills import DRILLS, Drill, Outcome, Ruling, drills_of
from labkit.interview.drills.drill_session import SAME_AGAIN, Asked, Round

_STYLES = {
    Outcome.RIGHT: "bold green",
    Outcome.TRAPPED: "bold yellow",
    Outcome.WRONG: "bold red",
    Outcome.UNREADABLE: "dim",
}


def drill(
    what: Annotated[
        str | None,
        typer.Argument(help="A drill, a topic (pp-2) or a group of topics (pp). Default: all."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many questions.")] = 5,
    seed: Annotated[int | None, typer.Option(help="Ask the same questions again.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the drills and end.")] = False,
) -> None:
    """Answer numeric questions. An empty line gives one up; Ctrl-D or Ctrl-C ends the round."""
    drills = drills_of(what)
    if show_list:
        _show_drills(drills)
        return
    asking = Round(drills, seed)
    status = 0
    try:
        for number in range(1, count + 1):
            ask(asking.ask(), f"Question {number} of {count}")
    except (EOFError, KeyboardInterrupt, typer.Abort) as end:
        console().print()
        status = 0 if isinstance(end, EOFError) else 130
    console().print(Text(asking.summary, style="bold"))
    if status:
        raise typer.Exit(status)


def ask(asked: Asked, heading: str, answers: Sequence[str] = ()) -> str:
    """One question, until it is right, given up, or wrong twice; then the way to its answer.

    answers: given before, so that nothing is typed. Returns the rating.
    """
    out = console()
    out.print(Text(f"{heading}: {asked.drill.title} ({asked.drill.topic})", style="bold"))
    out.print(Text(asked.question.prompt))
    out.print(Text(asked.question.exhibit.text), soft_wrap=True, end="")
    given = iter(answers)
    while not asked.is_over:
        typed = next(given, "") if answers else input("(an empty line gives up) > ").strip()
        if not typed:
            break
        if asked.is_same_again(typed):
            out.print(Text(f"{SAME_AGAIN} An empty line shows it.", style="dim"))
            continue
        _show(asked.answer(typed))
        if not asked.is_over:
            out.print(Text("One more try.", style="dim"))
    rating = asked.finish()
    out.print(Text(f"Answer: {asked.question.answer_text}", style="bold"))
    for step in asked.question.steps:
        out.print(Padding(Text(step), (0, 0, 0, 2)))
    out.print(Text(asked.question.proof.text), soft_wrap=True, end="")
    out.print(Text(f"Rated {rating}; {asked.drill.command} asks another.\n", style="dim"))
    return rating


def _show(ruling: Ruling) -> None:
    console().print(Text(ruling.text, style=_STYLES[ruling.outcome]))


def _show_drills(drills: list[Drill]) -> None:
    table = Table(box=box.SIMPLE)
    for heading in ("drill", "topic", "for", "asks for"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "asks for")
    for each in drills:
        table.add_row(each.name, each.topic, each.level, each.title)
    console().print(table)
    console().print(Text(f"{len(drills)} of {len(DRILLS)} drills"))
