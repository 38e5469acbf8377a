"""The command puzzle: what is asked, and whether a file with rows answers it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.cli.terminal import console
from labkit.grade.puzzles import PUZZLES, get_puzzle, solve, standing


def puzzle(
    name: Annotated[str | None, typer.Argument(help="The puzzle; a list, if left out.")] = None,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A text file with a line per rank.", exists=True, dir_okay=False, readable=True
        ),
    ] = None,
) -> None:
    """Arrange the operations of a pipeline within a memory and a time budget."""
    if name is None:
        width = max(map(len, PUZZLES))
        for each in PUZZLES.values():
            _show(f"{each.name.ljust(width)}  {each.difficulty} of 5  {standing(each.name)}")
    elif file is None:
        _show(str(get_puzzle(name)))
    else:
        ruling = solve(name, file.read_text(encoding="utf-8", errors="replace"))
        _show(repr(ruling))
        if not ruling:
            raise typer.Exit(1)


def _show(text: str) -> None:
    """As it is: the rows of a grid are not to be wrapped."""
    console().print(Text(text), soft_wrap=True)
