"""labkit profile: why a step is slow, from the traces of PyTorch Profiler."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from labkit.cli.ctrl_c import ending_at_once
from labkit.cli.terminal import console


def profile(
    traces: Annotated[
        list[Path],
        typer.Argument(help="What export_chrome_trace has written, one file per rank, or folders."),
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
        from labkit.profile import Trace, compare, page, read, report
        from labkit.profile.trace_file import MAX_BYTES

    def read_all(paths: list[Path]) -> Trace:
        return read(paths, communication=communication or (), max_bytes=max_bytes or MAX_BYTES)

    try:
        trace = read_all(traces)
        found = report(trace)
        comparison = compare(read_all(before), trace) if before else None
        if html:
            html.write_text(page(found, comparison), encoding="utf-8")
    except (OSError, ValueError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        console(stderr=True).print(Text(f"labkit: {text}", style="red"), soft_wrap=True)
        raise typer.Exit(2) from None
    if html:
        written = Text(f"Wrote {html}: open it in a browser.")
        console(stderr=as_json).print(written, soft_wrap=True)
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
