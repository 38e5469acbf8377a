"""labkit design: a design round in a terminal, and its report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from labkit.cli.terminal import UntilEnded, console
from labkit.interview.cards.sitting import parse_points
from labkit.interview.design import (
    NUMBERS,
    DesignRound,
    briefings,
    draw_briefing,
    get_briefing,
)
from labkit.interview.design.report import html_of, markdown_of
from labkit.interview.mock.report import require_report_name


def design(
    name: Annotated[
        str | None, typer.Argument(help="A briefing, as --list shows; default: a new one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draw the same briefing again.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A model or the path of its config.json, in a new briefing.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the briefings and end.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Save the report as FILE.md or FILE.html.")
    ] = None,
) -> None:
    """Design a training in 45 minutes: clarify, plan, predict, and meet facts that change."""
    if show_list:
        for each in briefings().values():
            console().print(Text(each.name, style="bold"))
            console().print(Padding(Text(each.story), (0, 0, 0, 2)))
        return
    if name is not None and (seed, model) != (None, None):
        reason = f"{name} is a briefing of the book, and --seed and --model make a new one"
        raise typer.BadParameter(f"{reason}: leave out the name, or these options")
    try:
        if save is not None:
            require_report_name(save)  # now, and not after 45 minutes
        briefing = get_briefing(name) if name else draw_briefing(seed, model)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    round_ = DesignRound(briefing)
    with UntilEnded() as ending:
        run_round(round_)
    round_.finish()
    console().print(Markdown(markdown_of(round_)))
    if save is not None:
        try:
            text = html_of(round_) if save.suffix == ".html" else markdown_of(round_)
            save.write_text(text, encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{save} cannot be written: {error.strerror}") from None
        console().print(Text(f"The report is in {save}"), soft_wrap=True)
    ending.leave()


def run_round(round_: DesignRound) -> None:
    """Ask everything of a round, in order. EOFError at its end by Ctrl-D."""
    out, briefing = console(), round_.briefing
    out.print(Text(briefing.story, style="bold"))
    _clarify(round_)
    first, *others = briefing.parts
    _tell(round_, first.name)
    _layout(round_)
    for part in others:
        if part.name == "checkpoints":  # before its model answer, which says the interval
            _heading(round_, "How often do you write a checkpoint?")
            _number(round_, "interval")
        _tell(round_, part.name)
    for place, change in enumerate(briefing.changes):
        _heading(round_, change.says)
        _change(round_, place)


def _heading(round_: DesignRound, text: str) -> None:
    left = f"{max(round_.left_s, 0) / 60:.0f} minutes left"
    console().print(Text.assemble((f"\n{text} ", "bold"), (left, "dim")))


def _clarify(round_: DesignRound) -> None:
    out = console()
    _heading(round_, "What do you ask back? Each question costs minutes.")
    for place, each in enumerate(round_.briefing.questions, 1):
        out.print(Text(f"  {place}. {each.question} ({each.minutes:g} min)"))
    count = len(round_.briefing.questions)
    while typed := input("A number, or Enter to go on: ").strip():
        try:
            chosen = parse_points(typed, count)
        except ValueError as error:
            out.print(Text(str(error), style="red"))
            continue
        for place in sorted(chosen):
            out.print(Text(f"{place}. {round_.clarify(place - 1)}"))
        out.print(Text(f"{max(round_.left_s, 0) / 60:.0f} minutes left", style="dim"))


def _layout(round_: DesignRound) -> None:
    out = console()
    _heading(round_, "Which layout?")
    out.print(Text("For example dp=8 tp=8 pp=4 zero=1 recompute=selective"))
    while typed := input("A layout, or Enter to keep the last one: ").strip():
        out.print(Text(round_.propose(typed).text))
    for name in ("step", "days"):
        _number(round_, name)
    out.print(Text(round_.speed))
    while typed := input("A better layout, or Enter to go on: ").strip():
        out.print(Text(round_.propose(typed).text))


def _number(round_: DesignRound, name: str) -> None:
    asks, unit = NUMBERS[name]
    while typed := input(f"{asks} ({unit}): ").strip():
        ruling = round_.predict(name, typed)
        console().print(Text(ruling.text))
        if name in round_.numbers or round_.chosen is None:
            return


def _change(round_: DesignRound, place: int) -> None:
    while typed := input("Seconds of a step: ").strip():
        console().print(Text(round_.meet(place, typed).text))
        if place in round_.met or round_.chosen is None:
            return


def _tell(round_: DesignRound, name: str) -> None:
    out, part = console(), round_.part(name)
    _heading(round_, part.asks)
    lines: list[str] = []
    while typed := input("> " if lines else "Write it; an empty line ends it. > "):
        lines.append(typed)
    out.print(Text("An interviewer listens for:"))
    for place, point in enumerate(part.points, 1):
        out.print(Text(f"  {place}. {point}"))
    while True:
        try:
            said = parse_points(
                input("Which did you say? (1 3, all; Enter: none) "), len(part.points)
            )
            break
        except ValueError as error:
            out.print(Text(str(error), style="red"))
    out.print(Text(f"A model answer: {round_.tell(name, chr(10).join(lines), said).text}"))
