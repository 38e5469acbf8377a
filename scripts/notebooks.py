"""Execute notebooks and store them in their normal form.

    python -m scripts.notebooks notebooks/*.ipynb

A text that differs from the stored one only in what tests/notebooks/sanitize.cfg names (durations,
processes) stays as it is stored, so that a change shows what changed.
"""

import argparse
import re
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
from nbval.plugin import get_sanitize_patterns

from scripts import kernel_transport
from scripts.normal_form import normal_form, pictures, texts

SANITIZE = Path(__file__).parents[1] / "tests" / "notebooks" / "sanitize.cfg"
CELL_TIMEOUT_S = 600  # as `make test`


def local_sockets() -> dict[str, str]:
    """Settings of a kernel manager: a kernel's five sockets are files that no other one has.

    See kernel_transport.py. Where the folder for temporary files has too long a name for sockets,
    it is TCP all the same.
    """
    place = f"{tempfile.gettempdir()}/k{secrets.token_hex(6)}"
    if len(f"{place}-ipc-5") > kernel_transport.LONGEST:
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


def keep_equal_texts(old: NotebookNode, new: NotebookNode) -> None:
    """Give cells of `new` the stored outputs of `old` where only durations and the like differ."""
    stored = {cell.id: cell for cell in normal_form(old).cells if cell.cell_type == "code"}
    for cell in new.cells:
        before = stored.get(cell.id)
        if before is None or cell.cell_type != "code" or before.source != cell.source:
            continue
        if before.execution_count != cell.execution_count:
            continue  # texts that name the cell would name it by its old number
        if pictures(before.outputs) or pictures(cell.outputs):
            continue
        if _sanitized(before.outputs) == _sanitized(cell.outputs):
            cell.outputs = before.outputs


def _sanitized(outputs: list[NotebookNode]) -> list[tuple[str, str]]:
    found = []
    for kind, text in texts(outputs):
        for regex, replace in get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8")):
            text = re.sub(regex, replace, text)
        if text:
            found.append((kind, text))
    return found


def refresh(path: Path) -> str | None:
    """Execute and store one notebook; what went wrong, or None."""
    old = nbformat.read(path, as_version=4)
    started_s = time.monotonic()
    try:
        new = execute(old, path.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return f"{path} is left as it was: {error}"
    keep_equal_texts(old, new)
    nbformat.write(normal_form(new), path)  # once more: a kept output has its old count
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
