"""A model's needs, from a preset or its config.json: labkit plan, memory and cache.

plan      the layouts of a training on a cluster, the fastest first, and why others lost; with
          --layout the speed of one, by part; with --also two kinds of GPU in one job
memory    one layout: the bytes of its fullest GPU, by part, and what to change if they are too many
cache     the key-value cache of requests, by kind of layer, and how many fit beside the weights

--model takes a name, such as llama3-8b, or the path of a config.json or of its folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from labkit import calc
from labkit.calc.hardware import Cluster
from labkit.calc.memory.loss import LOSSES
from labkit.calc.models import ModelConfig, model
from labkit.calc.plan.estimation import Verdict
from labkit.calc.result import Result
from labkit.calc.units import read_count
from labkit.cli.terminal import console

_WIDEST, _WIDTH_OF_ALL = "not computing", 110


def _bytes_of(recipe: str) -> str:
    kept = calc.RECIPES[recipe]
    each = (kept.parameter_bytes, kept.gradient_bytes, kept.master_bytes, sum(kept.moment_bytes))
    return "+".join(f"{size:.3g}" for size in each)


_Model = Annotated[
    str, typer.Option(help=f"The path of a config.json, or one of {', '.join(calc.MODELS)}.")
]
_Cluster = Annotated[str, typer.Option(help=f"One of {', '.join(calc.CLUSTERS)}.")]
_Recipe = Annotated[
    str,
    typer.Option(
        help="Bytes of a parameter, its gradient, its copy and its moments. "
        f"One of {', '.join(f'{name} ({_bytes_of(name)})' for name in calc.RECIPES)}."
    ),
]
_Sequence = Annotated[
    str | None,
    typer.Option(help="Tokens of a sequence, such as 8k. Default: the model's context."),
]

_LAYOUTS = (
    'such as "dp=8 tp=4 pp=2 zero=1 microbatch=2 recompute=full", or "pp=4 stages=1+2+2+3", or '
    '"dp=16 zero=3 shards=8 reshard_after_forward=false".'
)


def plan(
    model: _Model,
    cluster: _Cluster = "h100",
    gpus: Annotated[int | None, typer.Option(help="Default: all GPUs of the cluster.")] = None,
    global_batch: Annotated[int, typer.Option(help="Sequences in a step.")] = 2048,
    sequence: _Sequence = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens of the whole training, such as 15T or 15.6e12.")
    ] = None,
    recipe: _Recipe = "megatron_bf16",
    precision: Annotated[
        str, typer.Option(help="Number format of matrix products: bf16 or fp8.")
    ] = "bf16",
    layout: Annotated[
        str | None, typer.Option(help=f"Time this one layout alone, {_LAYOUTS}")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="GPUs of another kind in the same job, such as a100:32. May be repeated."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 10,
    explain: Annotated[
        bool, typer.Option(help="Explain the first layout, number by number.")
    ] = False,
) -> None:
    """Rank the layouts of a training on a cluster, and say why the others lost; or time one."""
    try:
        chosen = None if layout is None else calc.Layout.parse(layout)
        others = [_more_gpus(each) for each in also or ()]
        if chosen is not None:
            left = chosen.world_size - sum(each.num_gpus for each in others)
            if gpus not in (None, left):
                beside = " beside --also" * bool(others)
                raise ValueError(f"gpus={gpus}: the layout has {left}{beside}; leave --gpus out")
            gpus = left
        job = calc.plan.Job(
            _model(model),
            recipe,
            calc.cluster(cluster, gpus),
            global_batch,
            _tokens("sequence", sequence),
            _tokens("tokens", tokens),
            precision=precision,
        )
        if others:
            return _show_fleet(job, calc.plan.mixed_fleet(job, others, chosen))
        if chosen is not None:
            return _show_timed(job, chosen, explain)
        found = calc.plan.plan(job, top)
    except ValueError as error:
        raise typer.BadParameter(_by_option(str(error))) from None
    _show_plan(found)
    if not found.ranked:
        raise typer.Exit(1)
    if explain:
        console().print(Text(found.best.explain()), soft_wrap=True)


def memory(
    model: _Model,
    layout: Annotated[str, typer.Option(help=_LAYOUTS[0].upper() + _LAYOUTS[1:])] = "dp=1",
    cluster: _Cluster = "h100",
    global_batch: Annotated[
        int | None, typer.Option(help="Sequences in a step. Default: two rounds of microbatches.")
    ] = None,
    sequence: _Sequence = None,
    recipe: _Recipe = "megatron_bf16",
    loss: Annotated[
        str, typer.Option(help=f"How logits become a loss: {', '.join(LOSSES)}.")
    ] = "fused",
) -> None:
    """Say what one layout needs on its fullest GPU, by part; fails where it does not fit."""
    try:
        chosen = calc.Layout.parse(layout)
        batch = global_batch or 2 * chosen.pp * chosen.dp * chosen.microbatch
        job = calc.plan.Job(
            _model(model),
            recipe,
            calc.cluster(cluster, chosen.world_size),
            batch,
            _tokens("sequence", sequence),
            assumptions=calc.plan.Assumptions(loss=loss),
        )
        judged = calc.plan.verdict(job, chosen)
    except ValueError as error:
        raise typer.BadParameter(_by_option(str(error))) from None
    out = console()
    out.print(Text(f"{job.title}\n{chosen}", style="bold"))
    if judged.memory is not None:
        _show_parts(judged.memory)
        out.print(Text(f"Assumed: {judged.memory.convention}"))
    _show_verdict(judged)


def cache(
    model: _Model,
    tokens: Annotated[str, typer.Option(help="Tokens of a request, such as 32k.")] = "8k",
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(calc.GPUS)}.")] = "h100",
    tp: Annotated[int, typer.Option(help="GPUs that share weights and caches.")] = 1,
    weight_bits: Annotated[float, typer.Option(help="Bits of a weight: 16, 8 or 4.")] = 16,
    cache_bits: Annotated[float, typer.Option(help="Bits of a number in the cache.")] = 16,
    page_size: Annotated[int, typer.Option(help="Tokens of a page.")] = 16,
    usable: Annotated[float, typer.Option(help="Share of the memory that both may take.")] = 0.9,
) -> None:
    """Say what the key-value cache of a request takes, and how many requests fit."""
    try:
        config, length = _model(model), _tokens("tokens", tokens)
        assert length is not None
        sizes = {"tp": tp, "page_size": page_size}
        of_one = calc.cache_bytes(config, length, itemsize=cache_bits / 8, **sizes)
        fits = calc.requests_that_fit(
            config,
            gpu,
            length,
            itemsize=weight_bits / 8,
            cache_itemsize=cache_bits / 8,
            usable=usable,
            **sizes,
        )
    except ValueError as error:
        raise typer.BadParameter(_by_option(str(error))) from None
    out = console()
    out.print(Text(f"{calc.num_parameters(config)}, a request of {length:,} tokens", style="bold"))
    _show_parts(of_one)
    where = gpu if tp == 1 else f"{tp} x {gpu}"
    out.print(Text(f"{fits} requests fit on {where}: {fits.substitution}"))
    at_once = float(fits.parts["left for caches"]) / float(of_one)
    out.print(
        Text(f"caches of {at_once * length:,.0f} tokens in all, {at_once:.2f} requests at once")
    )


def _model(name: str) -> ModelConfig | str:
    """Return a name as it is, if it is one, and the model of a config.json."""
    is_path = name.endswith(".json") or "/" in name or Path(name).is_dir()
    if is_path and (Path(name).exists() or name.endswith(".json")):
        return calc.model_from_config(name)
    model(name)  # ValueError: near names
    return name


def _more_gpus(text: str) -> Cluster:
    """Return the cluster of `a100:32`. ValueError says the form."""
    name, _, count = text.partition(":")
    if not count.isdecimal():
        raise ValueError(f"--also {text}: give a cluster and a number of GPUs, such as a100:32")
    return calc.cluster(name, int(count))


def _tokens(name: str, text: str | None) -> int | None:
    """Return a count of tokens: K is 1024, as in the names of context lengths, and T 1e12."""
    if text is None:
        return None
    try:
        return round(read_count(text, k=1024))
    except ValueError as error:
        raise ValueError(f"{name}={text}: {error}") from None


def _by_option(text: str) -> str:
    """Write calc's complaint in the words of the command line: `--gpus 0: give ...`."""
    kinds = {"ModelConfig": "model", "Cluster": "cluster", "Recipe": "recipe", "GPU": "gpu"}
    for kind, option in kinds.items():
        if f" is no {kind} " in text:
            what = "not the path of a config.json and none of" if option == "model" else "none of"
            return f"--{option} {text}".replace(f"no {kind} and none of", what)
    text = re.sub("^num_gpus=", "gpus=", text)
    return re.sub(
        r"^(gpus|global_batch|sequence|loss|precision|tokens|usable|tp|page_size)=",
        lambda found: f"--{found[1].replace('_', '-')} ",
        text,
    )


def _show_parts(whole: Result, unit: str = "bytes") -> None:
    """Print a result's parts, the largest first, each with its arithmetic."""
    table = Table(box=box.SIMPLE)
    for heading in ("part", unit, "how"):
        table.add_column(heading, overflow="fold")
    for name, part in sorted(whole.parts.items(), key=lambda item: -float(item[1])):
        if float(part):
            table.add_row(Text(name), Text(str(part)), Text(_arithmetic(part)))
    also = f"{whole.to('GiB'):,.1f} GiB" if whole.dimension == "bytes" else ""
    table.add_row("in all", Text(str(whole), style="bold"), also)
    console().print(table)


def _show_verdict(judged: Verdict) -> None:
    """Print whether a layout fits, and what to change first; exit with 1 if it does not."""
    out = console()
    out.print(Text(judged.reason, style="" if judged else "bold yellow"))
    for warning in judged.warnings:
        out.print(Text(warning, style="yellow"))
    if judged.refused is None and not judged:
        change = calc.plan.smallest_change(judged.job, judged.layout)
        out.print(Text(f"To change first: {change or 'more GPUs, or GPUs with more memory'}"))
    if not judged:
        raise typer.Exit(1)


def _show_timed(job: calc.plan.Job, layout: calc.Layout, explain: bool) -> None:
    """Print the seconds of a layout's step by part, its speed, and whether it fits."""
    out, judged = console(), calc.plan.verdict(job, layout)
    out.print(Text(f"{job.title}\n{layout}", style="bold"))
    if judged.refused is not None:
        return _show_verdict(judged)
    found = calc.plan.estimate(job, layout)
    _show_parts(found.step, "seconds")
    out.print(Text(f"Assumed: {found.step.convention}"))
    rate = float(found.tokens_per_s)
    out.print(
        Text(
            f"{rate / job.num_gpus:,.0f} tokens/s a GPU, {rate:,.0f} in all; "
            f"MFU {found.mfu}, HFU {found.hfu}"
        )
    )
    if job.tokens is not None:
        out.print(Text(f"{found.time} in all, ${float(found.dollars):,.0f}"))
    if explain:
        out.print(Text(found.explain()), soft_wrap=True)
    _show_verdict(judged)


def _show_fleet(job: calc.plan.Job, steps: list[calc.plan.FleetStep]) -> None:
    """Print the step of a mixed fleet, and of each kind of GPU alone."""
    names = " and ".join(steps[0].microbatches)
    of = f"{job.global_batch:,} sequences of {job.length:,} tokens in a step"
    out, rows = console(), [each.row() for each in steps]
    out.print(Text(f"{names} in one job, {of}", style="bold"))
    table = Table(box=box.SIMPLE)
    for heading in rows[0]:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    out.print(table)
    out.print(Text("microbatches: of each replica. A kind that is busy for 40% waits for 60%."))


def _arithmetic(part: Result) -> str:
    """Return how a part is computed, in numbers also where it has parts of its own."""
    return " + ".join(map(_arithmetic, part.parts.values())) or part.substitution


def _show_plan(found: calc.plan.Plan) -> None:
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
