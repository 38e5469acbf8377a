"""labkit case: why is this run slow?"""

from typing import Annotated

import typer
from rich.text import Text

from labkit.cli.drills import ask
from labkit.cli.terminal import console
from labkit.interview.case_files import CASES
from labkit.interview.drills.drill_session import Round


def case(
    difficulty: Annotated[int, typer.Option(min=1, max=len(CASES), help="1 to 5.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Draw the same case again.")] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(help="An answer, such as 'straggler, rank 2, 28%'; repeatable."),
    ] = None,
) -> None:
    """Find out why a run is slow: its traces, hidden faults, your answer. Two tries."""
    console().print(Text("Two trainings run on 4 ranks, with a fault and without ...", style="dim"))
    asked = Round([CASES[f"case_{difficulty}"]], seed).ask()
    try:
        ask(asked, "Case", answer or ())
    except (EOFError, KeyboardInterrupt, typer.Abort) as end:
        console().print()
        raise typer.Exit(0 if isinstance(end, EOFError) else 130) from None
    if not asked.is_right:
        raise typer.Exit(1)
