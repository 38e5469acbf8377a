"""labkit doctor: what this machine can do, and what to do about each problem."""

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit.cli.terminal import console
from labkit.launch.machine.checkup import Finding, Level, check_up

_MARKS = {
    Level.OK: Text("ok", style="green"),
    Level.WARNING: Text("warning", style="bold yellow"),
    Level.ERROR: Text("problem", style="bold red"),
}


def doctor() -> None:
    """Show what this machine can do, with a real run of two ranks; takes some seconds."""
    findings = check_up()
    _show(findings)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(1)


def _show(findings: list[Finding]) -> None:
    out = console()
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(_MARKS[finding.level], finding.subject, Text(finding.text))
    out.print(table)
    problems = [finding for finding in findings if finding.level is not Level.OK]
    for finding in sorted(problems, key=lambda finding: -finding.level):
        out.print()
        out.print(Text(f"{finding.subject}: {finding.text}", style="bold"))
        for label, text in (("Why it matters", finding.why), ("What to do", finding.fix)):
            line = Text(f"{label}: ", style="bold") + Text(text)
            out.print(Padding(line, (0, 0, 0, 2)))
    out.print()
    out.print(Text(_summary(problems)))


def _summary(problems: list[Finding]) -> str:
    num_errors = sum(finding.level is Level.ERROR for finding in problems)
    if num_errors:
        return f"Runs do not work here yet: {_counted(num_errors, 'problem')} to solve first."
    if problems:
        return f"Runs work here, with {_counted(len(problems), 'warning')}."
    return "Everything works here."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
