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
        list[Path],
        typer.Argument(help="What export_chrome_trace has written, one file per rank, or folders."),
    ],
    before: Annotated[
        list[Path] | None,
        typer.Option(help="A folder, or files with one --before each: the run to compare with."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with a timeline to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures for programs.")] = False,
) -> None:
    """Say where the time of a training step goes, from profiler traces of any job."""
    from labkit.profile import compare, page, read, report

    try:
        trace = read(traces)
        found = report(trace)
        comparison = compare(read(before), trace) if before else None
        if html:
            html.write_text(page(found, comparison), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        compared = {"comparison": comparison.to_json()} if comparison else {}
        print(json.dumps(found.to_json() | compared, indent=1))
        return
    _print("Milliseconds of a step, on average", found.rows(), found.words())
    if comparison:
        notes = [f"Note: {note}." for note in comparison.notes]
        _print(comparison.verdict, comparison.rows(), notes)


def _print(heading: str, rows: list[dict[str, str]], lines: list[str]) -> None:
    out = console()
    out.print(Text(heading), soft_wrap=True)
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))  # ten columns in 80 letters
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row.values())
    out.print(table)
    for line in lines:
        out.print(Text(line), soft_wrap=True)
