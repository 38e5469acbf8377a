"""labkit plan: the layouts of a training on a cluster, the fastest first, and why others lost."""

import re
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from labkit import calc
from labkit.cli.terminal import console

_WIDEST, _WIDTH_OF_ALL = "not computing", 110


def plan(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(calc.MODELS)}.")],
    cluster: Annotated[str, typer.Option(help=f"One of {', '.join(calc.CLUSTERS)}.")] = "h100",
    gpus: Annotated[int | None, typer.Option(help="Default: all GPUs of the cluster.")] = None,
    global_batch: Annotated[int, typer.Option(help="Sequences in a step.")] = 2048,
    sequence: Annotated[
        int | None, typer.Option(help="Tokens of a sequence. Default: the model's context.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Tokens of the whole training, such as 15.6e12.")
    ] = None,
    recipe: Annotated[str, typer.Option(help=f"One of {', '.join(calc.RECIPES)}.")] = (
        "megatron_bf16"
    ),
    top: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 10,
    explain: Annotated[
        bool, typer.Option(help="Explain the first layout, number by number.")
    ] = False,
) -> None:
    """Rank the layouts of a training on a cluster, and say why the others lost."""
    try:
        job = calc.plan.Job(
            model, recipe, calc.cluster(cluster, gpus), global_batch, sequence, tokens
        )
        found = calc.plan.plan(job, top)
    except ValueError as error:
        raise typer.BadParameter(_by_option(str(error))) from None
    _show(found)
    if not found.ranked:
        raise typer.Exit(1)
    if explain:
        console().print(Text(found.best.explain()), soft_wrap=True)


def _by_option(text: str) -> str:
    """What calc says of its arguments, in the words of the command line: `--gpus 0: give ...`."""
    for kind, option in (("ModelConfig", "model"), ("Cluster", "cluster"), ("Recipe", "recipe")):
        if f" is no {kind} " in text:
            return f"--{option} {text}"
    text = re.sub("^num_gpus=", "gpus=", text)
    return re.sub(
        r"^(gpus|global_batch|sequence|tokens)=",
        lambda found: f"--{found[1].replace('_', '-')} ",
        text,
    )


def _show(found: calc.plan.Plan) -> None:
    out = console()
    out.print(Text(found.job.title, style="bold"))
    out.print(Text(found.summary))
    rows = found.rows()
    if rows:
        table = Table(box=box.SIMPLE)
        headings = [each for each in rows[0] if out.width >= _WIDTH_OF_ALL or each != _WIDEST]
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[heading]) for heading in headings))
        out.print(table)
        for each in found.best.warnings:
            out.print(Text(f"the first: {each}", style="yellow"))
    else:
        out.print(Text(f"Nothing fits.\n{found.help}", style="bold yellow"))
    out.print(Text("\nWhy others lost", style="bold"))
    for group in found.losers:
        out.print(Text(str(group)))
