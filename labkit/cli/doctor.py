"""What this machine can do, and whether it is ready for a job: labkit doctor, labkit preflight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit.calc.units import parse_quantity
from labkit.cli.ctrl_c import ending_at_once
from labkit.cli.terminal import console, counted

if TYPE_CHECKING:
    from labkit.launch.machine.checkup import Finding

_MARKS = (  # by level
    Text("ok", style="green"),
    Text("warning", style="bold yellow"),
    Text("problem", style="bold red"),
)


def doctor() -> None:
    """Show what this machine can do, with a real run of two ranks; takes some seconds."""
    with ending_at_once():
        from labkit.launch.machine import checkup  # it takes torch with it

    findings = checkup.check_up()
    _show(findings)
    if any(finding.level is checkup.Level.ERROR for finding in findings):
        raise typer.Exit(1)


def _show(findings: list[Finding]) -> None:
    out = console()
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(_MARKS[finding.level], finding.subject, Text(finding.text))
    out.print(table)
    problems = [finding for finding in findings if finding.level]  # OK is 0
    for finding in sorted(problems, key=lambda finding: -finding.level):
        out.print()
        out.print(Text(f"{finding.subject}: {finding.text}", style="bold"))
        for label, text in (("Why it matters", finding.why), ("What to do", finding.fix)):
            line = Text(f"{label}: ", style="bold") + Text(text)
            out.print(Padding(line, (0, 0, 0, 2)))
    out.print()
    out.print(Text(_summary(problems)))


def _summary(problems: list[Finding]) -> str:
    from labkit.launch.machine.checkup import Level

    num_errors = sum(finding.level is Level.ERROR for finding in problems)
    if num_errors:
        return f"Runs do not work here yet: {counted(num_errors, 'problem')} to solve first."
    if problems:
        return f"Runs work here, with {counted(len(problems), 'warning')}."
    return "Everything works here."


def preflight(
    ranks: Annotated[
        int, typer.Option(min=1, help="Processes: as many as the job will have here.")
    ] = 4,
    folder: Annotated[
        Path | None, typer.Option(help="The folder where checkpoints will go.")
    ] = None,
    burn_in: Annotated[float, typer.Option(min=0, help="Seconds of matrix products.")] = 2,
    free: Annotated[str, typer.Option(help="The disk space that must be free there.")] = "1 GB",
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. Default: cuda if there are enough GPUs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Check links, arithmetic, disk and clocks on real ranks; fails where something is wrong."""
    with ending_at_once():
        from labkit.launch import RunError, launch
        from labkit.measure import preflight as check

    try:
        free_bytes, dimension = parse_quantity(free)
        if dimension not in ("", "bytes"):
            raise ValueError(f"--free {free}: give bytes, such as 20 GB")
        args = (folder and folder.absolute(), burn_in, free_bytes)
        run = launch(check, ranks, [args], device=device, timeout=120 + 2 * burn_in)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except RunError as error:  # such as a rank that cannot be reached
        console(stderr=True).print(Text(str(error), style="red"))
        raise typer.Exit(1) from None
    checked = run.values[0]
    if as_json:
        print(json.dumps(checked.to_json(), indent=1))
    else:
        out = console()
        out.print(Text(checked.table()), soft_wrap=True)
        out.print("ready" if checked.is_ready else Text("not ready", style="bold red"))
    if not checked.is_ready:
        raise typer.Exit(1)
