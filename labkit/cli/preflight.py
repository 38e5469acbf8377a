"""labkit preflight: links, arithmetic, disk and clocks of this machine, before a job."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.calc.units import parse_quantity
from labkit.cli.terminal import console


def preflight(
    ranks: Annotated[int, typer.Option(min=1, help="Processes, as the job will have here.")] = 4,
    folder: Annotated[Path | None, typer.Option(help="Where checkpoints will go.")] = None,
    burn_in: Annotated[float, typer.Option(min=0, help="Seconds of matrix products.")] = 2,
    free: Annotated[str, typer.Option(help="What must be free in the folder.")] = "1 GB",
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; if left out, GPUs where there are enough.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures for programs.")] = False,
) -> None:
    """Check links, arithmetic, disk and clocks on real ranks; fails where something is wrong."""
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
