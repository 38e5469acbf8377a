"""Execute notebooks and store them in their normal form.

    python -m scripts.notebooks notebooks/*.ipynb

All outputs of a page are stored from one run, so that a time in a text is the time in the picture
beside it.
"""

import argparse
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

from labkit.cli.lab import LONGEST
from scripts.normal_form import normal_form

CELL_TIMEOUT_S = 600  # as `make test`


def local_sockets() -> dict[str, str]:
    """Settings of a kernel manager: a kernel's five sockets are files that no other one has.

    See `transport` in labkit/cli/lab.py. Where the folder for temporary files has too long a name
    for sockets, it is TCP all the same.
    """
    place = f"{tempfile.gettempdir()}/k{secrets.token_hex(6)}"
    if len(f"{place}-ipc-5") > LONGEST:
        return {}
    return {"transport": "ipc", "connection_file": f"{place}.json"}


class ThisPython(AsyncKernelManager):
    """A kernel of the Python that runs this script, as in the tests: not one of the user's."""

    def __init__(self, **traits: Any) -> None:
        traits = {"kernel_spec_manager": NbvalKernelspecManager(), **local_sockets(), **traits}
        super().__init__(**traits)


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Return a copy of the notebook, run from top to bottom in `folder`, in its normal form.

    Raises nbclient's errors: CellExecutionError, CellTimeoutError, DeadKernelError.
    """
    ran = normal_form(notebook)
    client = NotebookClient(
        ran,
        timeout=CELL_TIMEOUT_S,
        kernel_manager_class=ThisPython,
        kernel_name=CURRENT_ENV_KERNEL_NAME,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        store_widget_state=False,
    )
    client.execute()
    return normal_form(ran)


def refresh(path: Path) -> str | None:
    """Execute and store one notebook; what went wrong, or None."""
    old = nbformat.read(path, as_version=4)
    started_s = time.monotonic()
    try:
        new = execute(old, path.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return f"{path} is left as it was: {error}"
    nbformat.write(new, path)
    print(f"{path}: {time.monotonic() - started_s:.1f} s", flush=True)
    return None


def main() -> None:
    """Refresh every notebook named; exit with what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebook", nargs="+", type=Path, help="such as notebooks/*.ipynb")
    paths: list[Path] = parser.parse_args().notebook
    if missing := [str(path) for path in paths if not path.is_file()]:
        parser.error(f"there is no {', '.join(missing)}")
    problems = [problem for path in paths if (problem := refresh(path))]
    if problems:
        raise SystemExit("\n\n".join(problems))


if __name__ == "__main__":
    main()
