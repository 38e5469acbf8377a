"""labkit profile: why a step is slow, from the traces of PyTorch Profiler."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from labkit.cli.terminal import console


def profile(
    traces: Annotated[
        list[Path], typer.Argument(help="What export_chrome_trace has written, one file per rank.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Figures for programs.")] = False,
) -> None:
    """Say where the time of a training step goes, from profiler traces of any job."""
    from labkit.profile import read, report

    try:
        found = report(read(traces))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
        return
    out = console()
    out.print("Milliseconds of a step, on average")
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))  # ten columns in 80 letters
    for heading in found.rows()[0]:
        table.add_column(heading, justify="right")
    for row in found.rows():
        table.add_row(*row.values())
    out.print(table)
    for line in found.words():
        out.print(Text(line), soft_wrap=True)
