"""labkit web: the website of the lab, on this machine.

A page that is opened as a file shows everything but the parts that run: a browser loads modules and
WebAssembly from a server only, and by their MIME types.
"""

import errno
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from labkit.arguments import UserError
from labkit.cli.terminal import console
from labkit.grade.workspace import find_packages_workspace

_HOST = "127.0.0.1"


class _Handler(SimpleHTTPRequestHandler):
    # mimetypes reads tables of the system, which may lack these.
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".css": "text/css",
        ".js": "text/javascript",
        ".json": "application/json",
        ".mjs": "text/javascript",
        ".svg": "image/svg+xml",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that has left the page while it loaded."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def web(
    folder: Annotated[
        Path | None, typer.Argument(help="A built site; by default that of the clone.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")
    ] = 8000,
) -> None:
    """Serve the website that `make book` has built, on this machine, until Ctrl-C."""
    with server(folder, port) as serving:
        url = f"http://{_HOST}:{serving.server_port}"
        console().print(Text(f"The lab as a website: {url} (Ctrl-C ends it)"), soft_wrap=True)
        serving.serve_forever()


def server(folder: Path | None, port: int) -> ThreadingHTTPServer:
    """Return a server of a built site on localhost. UserError without a site, or a free port.

    folder: the site; None: build/book/html of the clone that labkit is installed from.
    """
    site = folder or find_packages_workspace().root / "build" / "book" / "html"
    if not (site / "index.html").is_file():
        fix = "name the folder that has one" if folder else "`make book` in a clone builds it"
        raise UserError(f"{site} has no index.html, so it is no website: {fix}")
    try:
        return _Server((_HOST, port), partial(_Handler, directory=str(site)))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        fix = "`labkit web --port 0` takes a free one"
        raise UserError(f"port {port} cannot be used: {error.strerror}; {fix}") from None
