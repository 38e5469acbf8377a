"""labkit draw: a grid to fill in a file, checked by replaying it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.cli.terminal import console
from labkit.interview.draw import all_drawings, get_drawing, read_cells


def draw(
    name: Annotated[str | None, typer.Argument(help="The drawing. Default: a list.")] = None,
    file: Annotated[
        Path | None,
        typer.Argument(help="A text file with a line per rank. Without one the task is shown."),
    ] = None,
    hint: Annotated[bool, typer.Option("--hint", help="Show the invariant.")] = False,
    answer: Annotated[bool, typer.Option("--answer", help="Show cells that are right.")] = False,
) -> None:
    """Fill a grid as on a whiteboard: who sends what when, who holds what. Or check a file."""
    out = console()
    if name is None:
        for each in all_drawings().values():
            out.print(Text(f"{each.name:22}{each.title}"), soft_wrap=True)
        return
    drawing = get_drawing(name)
    if file is not None and (hint or answer):
        raise typer.BadParameter(f"--hint and --answer go with the task: leave out {file}, or them")
    if file is None:
        out.print(Text(drawing.title, style="bold"))
        out.print(Text(drawing.prompt))
        if hint:
            out.print(Text(f"\nHint: {drawing.hint}"))
        cells = drawing.answer if answer else drawing.empty
        out.print(Text(f"\n{drawing.text_of(cells)}"), soft_wrap=True)
        how = f"`labkit draw {drawing.name} > FILE` writes this into a file. Fill it in there, and "
        out.print(Text(f"\n{how}`labkit draw {drawing.name} FILE` checks it."), soft_wrap=True)
        return
    try:
        ruling = drawing.rule(read_cells(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None
    out.print(Text(ruling.text, style="bold green" if ruling.is_right else "bold red"))
    if not ruling.is_right:
        raise typer.Exit(1)
