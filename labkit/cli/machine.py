"""This machine, traces and servers: labkit doctor, preflight, profile and serve.

doctor      what this machine can do
preflight   whether it is ready for a job
profile     why a step is slow, from the traces of PyTorch Profiler
serve       a trained GPT for every client of OpenAI's protocol, until Ctrl-C
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit.calc.units import parse_quantity
from labkit.cli.ctrl_c import ending_at_once
from labkit.cli.terminal import console, counted

if TYPE_CHECKING:
    from labkit.launch.checkup import Finding
    from labkit.profile.comparison import Comparison
    from labkit.profile.report import Report

_MARKS = (  # by level
    Text("ok", style="green"),
    Text("warning", style="bold yellow"),
    Text("problem", style="bold red"),
)


def doctor() -> None:
    """Show what this machine can do, with a real run of two ranks; takes some seconds."""
    with ending_at_once():
        from labkit.launch import checkup  # it takes torch with it

    findings = checkup.check_up()
    _show_checkup(findings)
    if any(finding.level is checkup.Level.ERROR for finding in findings):
        raise typer.Exit(1)


def _show_checkup(findings: list[Finding]) -> None:
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
    from labkit.launch.checkup import Level

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


def profile(
    traces: Annotated[
        list[Path],
        typer.Argument(help="Files of export_chrome_trace, one per rank, or folders."),
    ],
    before: Annotated[
        list[Path] | None,
        typer.Option(help="Traces of the run to compare with: a folder, or one --before per file."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with a timeline to this file.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON, for programs. Times are in us, overlap is 0 to 1."
        ),
    ] = False,
    communication: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGEX",
            help="Kernels whose names match count as communication, in addition to those of NCCL, "
            "RCCL, DeepEP, NVSHMEM, vLLM, FlashInfer, TensorRT-LLM and others; repeatable.",
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="The largest trace to read, unpacked. Default: 2 GB."),
    ] = None,
) -> None:
    """Say where the time of a training step goes, from profiler traces of any job."""
    with ending_at_once():
        from labkit.profile import compare, page, read, report
        from labkit.profile.trace_file import MAX_BYTES
    read_all = partial(read, communication=communication or (), max_bytes=max_bytes or MAX_BYTES)
    with _refusing_bad_files():
        trace = read_all(traces)
        found = report(trace)
        comparison = compare(read_all(before), trace) if before else None
        if html:
            html.write_text(page(found, comparison), encoding="utf-8")
    if html:
        console(stderr=as_json).print(Text(f"Wrote {html}: open it in a browser."), soft_wrap=True)
    _show_profile(found, comparison, as_json)


@contextmanager
def _refusing_bad_files() -> Iterator[None]:
    """End with status 2 and one line if a file cannot be read, understood or written."""
    try:
        yield
    except (OSError, ValueError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        console(stderr=True).print(Text(f"labkit: {text}", style="red"), soft_wrap=True)
        raise typer.Exit(2) from None


def _show_profile(found: Report, comparison: Comparison | None, as_json: bool) -> None:
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
    widths = [max(len(name), *(len(row[name]) for row in rows)) + 1 for name in rows[0]]
    if sum(widths) > out.width:  # headings that are cut off say nothing
        for row in rows:
            cells = [f"{name} {cell}" for name, cell in row.items() if cell]
            out.print(Text(", ".join(cells)), soft_wrap=True)
    else:
        frame = box.SIMPLE if sum(widths) + len(widths) + 1 <= out.width else None
        table = Table(box=frame, padding=(0, 1, 0, 0))  # ten columns in 80 letters
        for name in rows[0]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row.values())
        out.print(table)
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def serve(
    folder: Annotated[
        Path,
        typer.Argument(help="Where Checkpointer(..., extra={'config': config}) saved."),
    ],
    name: Annotated[
        str | None, typer.Option(help="The model's name. Default: the folder's name.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anyone who can reach it can use the model.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8000,
    tp: Annotated[int, typer.Option(min=1, help="Ranks that share each layer.")] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, help="Copies of the model. Each restarts by itself.")
    ] = 1,
) -> None:
    """Serve the newest checkpoint of a GPT by OpenAI's protocol, until Ctrl-C."""
    with ending_at_once():  # they take a second to import, and need FastAPI, an extra
        from labkit.checkpoint import Damaged, read_gpt
        from labkit.launch import RunError
        from labkit.serving import serve as serving
        from labkit.serving.server import engine_for

    out, name = console(), name or folder.resolve().name
    try:
        model = read_gpt(folder)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with (
            engine_for(model, replicas, tp) as engine,
            serving(engine, name=name, host=host, port=port) as server,
        ):
            out.print(Text(f"{name}: {model.num_parameters:,} parameters, at {server.url}/v1"))
            out.print(Text(f"OpenAI(base_url='{server.url}/v1', api_key='none')", style="bold"))
            out.print(Text("Ctrl-C ends it."))
            threading.Event().wait()
    except (OSError, ValueError, Damaged, RunError) as error:
        raise typer.BadParameter(str(error)) from None
    except KeyboardInterrupt:
        out.print(Text("closed"))
