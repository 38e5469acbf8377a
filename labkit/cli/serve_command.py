"""labkit serve: a trained GPT for every client of OpenAI's protocol, until Ctrl-C."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.checkpoint import Damaged, read_gpt
from labkit.cli.terminal import console


def serve(
    folder: Annotated[
        Path,
        typer.Argument(help="Checkpoints of Checkpointer(..., extra={'config': config})."),
    ],
    name: Annotated[
        str | None, typer.Option(help="Of the model; the folder's, if left out.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen. There are no passwords: mind who can reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.")] = 8000,
) -> None:
    """Serve the newest checkpoint of a GPT by OpenAI's protocol, until Ctrl-C."""
    from labkit.serving import serve as serving  # FastAPI: an extra that no other command needs

    out, name = console(), name or folder.resolve().name
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        model = read_gpt(folder)
        with serving(model, name=name, host=host, port=port) as server:
            out.print(Text(f"{name}: {model.num_parameters:,} parameters, at {server.url}/v1"))
            out.print(Text(f"OpenAI(base_url='{server.url}/v1', api_key='none')", style="bold"))
            out.print(Text("Ctrl-C ends it."))
            threading.Event().wait()
    except (OSError, ValueError, Damaged) as error:
        raise typer.BadParameter(str(error)) from None
    except KeyboardInterrupt:
        out.print(Text("closed"))
