"""The command puzzle: what is asked, and whether a file with rows answers it."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.arguments import printable
from labkit.cli.terminal import console
from labkit.grade.puzzles import PUZZLES, UnknownPuzzle, get_puzzle, solve, standing


def puzzle(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [FILE]",
            help="The puzzle, and a text file with a line per rank that answers it. Without a "
            "file it is shown; without a name, a list.",
        ),
    ] = None,
) -> None:
    """Arrange the operations of a pipeline within a memory and a time budget."""
    name, file = _name_and_file(words or [])
    if not name:
        width = max(map(len, PUZZLES))
        for each in PUZZLES.values():
            _show(f"{each.name.ljust(width)}  {each.difficulty} of 5  {standing(each.name)}")
    elif file is None:
        _show(str(get_puzzle(name)))
    else:
        try:
            rows = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None
        ruling = solve(name, rows)
        _show(repr(ruling))
        if not ruling:
            raise typer.Exit(1)


def _name_and_file(words: list[str]) -> tuple[str, Path | None]:
    """A name has several words, with quotes around it or without; the last word may be a file."""
    if not words:
        return "", None
    for name, file in ((words, None), (words[:-1], Path(words[-1]))):
        with contextlib.suppress(UnknownPuzzle):
            return get_puzzle(" ".join(name)).name, file
    if len(words) > 1 and Path(words[-1]).exists():
        words = words[:-1]
    return " ".join(words), None


def _show(text: str) -> None:
    """As it is: the rows of a grid are not to be wrapped."""
    console().print(Text(printable(text)), soft_wrap=True)
