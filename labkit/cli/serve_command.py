"""labkit serve: a trained GPT for every client of OpenAI's protocol, until Ctrl-C."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.cli.ctrl_c import ending_at_once
from labkit.cli.terminal import console


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
        from labkit.serving.default_engine import engine_for

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
