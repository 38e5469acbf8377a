"""labkit lab FOLDER: the course in JupyterLab, in the environment that labkit is installed in.

The process becomes JupyterLab: its options come after `--`, and Ctrl-C reaches it.

jupyter/ is a folder of JupyterLab's configuration. Without `fetchNews` JupyterLab asks, over the
text, whether it may fetch news from the network. Without `saveState` a saved notebook reopens with
an error instead of each widget.
"""

import os
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.start import find_copy, update, write_copy
from labkit.cli.terminal import console
from labkit.grade.workspace import COPY

FIRST_PAGE = "notebooks/00_start_here.ipynb"
SETTINGS = Path(__file__).parent / "jupyter"
LONGEST = 103
"""Characters of a socket's path on macOS; Linux has room for 107."""
NAME = "kernel-01234567-89ab-cdef-0123-456789abcdef-ipc-5"


def lab(
    folder: Annotated[Path, typer.Argument(help="Your copy; written if missing.")] = Path(COPY),
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- OPTIONS", help="For JupyterLab, such as --no-browser --port 8899."
        ),
    ] = None,
) -> None:
    """Open your copy of the course in JupyterLab, until Ctrl-C.

    A missing copy is written first. One that is there, or above, gets what is new in the course.
    """
    if str(folder).startswith("-"):
        raise typer.BadParameter(f"name the folder first: labkit lab {COPY} -- {folder}")
    if find_spec("jupyterlab") is None:  # said before anything is written
        raise ModuleNotFoundError("No module named 'jupyterlab'", name="jupyterlab")
    if copy := find_copy(folder):
        update(copy)
    else:
        write_copy(copy := folder.resolve())
    given = options or []
    os.environ |= _environment()
    os.environ.pop("JUPYTER_PATH", None)
    program = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={copy}"]
    words = [*program, *_missing_options(given), *given]
    sys.stdout.flush()
    os.execv(sys.executable, words)


def _missing_options(given: list[str]) -> list[str]:
    """Return the options of JupyterLab that the caller has not given."""
    from jupyter_core.paths import jupyter_runtime_dir

    found = [f"--LabApp.default_url=/lab/tree/{FIRST_PAGE}"]
    if not any(word.split("=")[0] in ("--ip", "--ServerApp.ip") for word in given):
        found.append("--ip=127.0.0.1")
    if not any(word.startswith("--KernelManager.transport") for word in given):
        found.append(f"--KernelManager.transport={transport(jupyter_runtime_dir())}")
    if os.geteuid() == 0 and "--allow-root" not in given:
        console().print("You are root, which Jupyter refuses by itself: passing --allow-root.")
        found.append("--allow-root")
    return found


def _environment() -> dict[str, str]:
    """Return variables for JupyterLab, its terminals and its kernels."""
    own, paths = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    configs = os.environ.get("JUPYTER_CONFIG_PATH", "")
    return {
        # Terminals find this environment's `labkit`.
        "PATH": f"{own}{os.pathsep}{paths}",
        # A kernel of this environment, whatever kernels the user has elsewhere.
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, [configs, str(SETTINGS)])),
    }


def transport(folder: str) -> str:
    """Return how Jupyter reaches kernels with connection files in `folder`: "ipc" or "tcp".

    ipc means sockets that are files, with names of their own. A TCP port is chosen a second before
    a kernel binds it. Meanwhile another process may be given it, such as a rank of another
    notebook. Sockets cannot be files where their path would be too long, or where a file system has
    no sockets, as some network folders. The folder is made if missing.
    """
    if len(f"{folder}/{NAME}") > LONGEST:
        return "tcp"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix="k") as own,
            socket.socket(socket.AF_UNIX) as probe,
        ):
            probe.bind(str(Path(own) / "s"))
    except OSError:
        return "tcp"
    return "ipc"
