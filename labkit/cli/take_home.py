"""labkit take-home: the task, the answers to beat, and the score of yours."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.cli.terminal import console
from labkit.interview import take_home as game


def take_home(
    file: Annotated[
        Path | None, typer.Argument(help="Your answer, a TOML file. Without one: the task.")
    ] = None,
) -> None:
    """Beat five plans for 70B on 64 GPUs: your layout, schedule and placement, by step time."""
    out = console()
    if file is None:
        out.print(Text((game.__doc__ or "").strip()), soft_wrap=True)
        out.print(Text(f"\nThe bound is {game.bound_s():.3f} s. Answers to beat:", style="bold"))
        for name, each in game.scored_baselines().items():
            out.print(Text(f"{name}: {game.BASELINES[name]['layout']}\n    {each}"))
        if (best := game.best_s()) is not None:
            out.print(Text(f"Your best so far: {best:.3f} s"))
        return
    try:
        found = game.score(game.read_answer(file))
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None
    out.print(Text(str(found), style="bold"))
    out.print(Text(f"It beats {', '.join(game.beaten(found)) or 'none of the five'}."))
