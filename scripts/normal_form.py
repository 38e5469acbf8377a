"""The normal form of a notebook: what is stored of it, so that two runs differ in little.

Kept: cells with stable ids, their tags, and their outputs, counted from 1. Not kept: who ran it,
when and with what, and the state of widgets, whose ids differ in every run. `complaints` names what
no tidying can repair.
"""

import base64
import copy
import hashlib
import re
from collections.abc import Iterator

from nbformat import NotebookNode, from_dict

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "name": "python", "pygments_lexer": "ipython3"},
}
CELL_METADATA = ("tags", "jupyter")  # fields for readers and tests; `jupyter` may fold a cell
VOLATILE_MIME = "application/vnd.jupyter.widget-view+json"
CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PICTURE_BYTES = 100_000
OWN_PATH = re.compile(
    r"(?<![\w.])/(?:home|root|Users|work|tmp|private|var/folders)/[\w.]|/lib/python3\.\d+/"
)
# The first two pass when nothing is raised, the last when nothing works.
BLIND_MARKERS = ("raises-exception", "nbval-raises-exception", "nbval-skip")


def normal_form(notebook: NotebookNode) -> NotebookNode:
    """Return a copy of the notebook in its normal form."""
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = from_dict(METADATA)
    ids: set[str] = set()
    count = 0
    for cell in notebook.cells:
        cell.metadata = NotebookNode(
            {key: cell.metadata[key] for key in CELL_METADATA if cell.metadata.get(key)}
        )
        cell.id = _stable_id(cell, ids)
        ids.add(cell.id)
        if cell.cell_type == "code":
            count += cell.execution_count is not None
            cell.execution_count = None if cell.execution_count is None else count
            cell.outputs = [_tidy(output, cell.execution_count) for output in _merged(cell.outputs)]
    return notebook


def _stable_id(cell: NotebookNode, taken: set[str]) -> str:
    """Return the cell's own id, or one made from its text: the same text gets the same id again."""
    given: str = cell.get("id", "")
    if CELL_ID.fullmatch(given) and given not in taken:
        return given
    for attempt in range(len(taken) + 1):
        text = f"{cell.cell_type} {attempt} {cell.source}"
        found = hashlib.sha256(text.encode()).hexdigest()[:8]
        if found not in taken:
            return found
    raise AssertionError("as many ids as tries can't all be taken")


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs, neighbours of one stream as one, without what only showed a widget."""
    merged: list[NotebookNode] = []
    for output in outputs:
        if "data" in output:
            output.data.pop(VOLATILE_MIME, None)
            if not output.data:
                continue
        last = merged[-1] if merged else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def _tidy(output: NotebookNode, count: int | None) -> NotebookNode:
    """The output with its cell's count."""
    if output.output_type == "execute_result":
        output.execution_count = count
    return output


def texts(outputs: list[NotebookNode]) -> list[tuple[str, str]]:
    """(stream or mime type, text) of all that is stored, pictures aside."""
    found = []
    for output in outputs:
        if output.output_type == "stream":
            found.append((output.name, output.text))
        for mime, value in sorted(output.get("data", {}).items()):
            if not mime.startswith("image/"):
                found.append((mime, value if isinstance(value, str) else repr(value)))
    return found


def pictures(outputs: list[NotebookNode]) -> list[bytes]:
    """Return the stored pictures: PNG and JPEG decoded, SVG as its text."""
    found = []
    for output in outputs:
        for mime, value in output.get("data", {}).items():
            if mime == "image/svg+xml":
                found.append(value.encode())
            elif mime.startswith("image/"):
                found.append(base64.b64decode(value))
    return found


def complaints(notebook: NotebookNode) -> list[str]:
    """Return the problems of the stored notebook besides its form, a line each."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    lines = [f"cell {n}: {line}" for n, cell in enumerate(code) for line in _of_cell(cell)]
    if not any(cell.outputs and "nbval-ignore-output" not in _markers(cell) for cell in code):
        lines.append("every output is tagged nbval-ignore-output, so nothing is compared")
    return lines


def _of_cell(cell: NotebookNode) -> Iterator[str]:
    if cell.source.strip() and cell.execution_count is None:
        yield "was never run, so nothing of it is compared; run `make notebooks`"
    for marker in BLIND_MARKERS:
        if marker in _markers(cell):
            yield f"is marked {marker}, which passes unseen; expect the error in the code instead"
    if any(output.output_type == "error" for output in cell.outputs):
        yield "stores an error"
    for picture in pictures(cell.outputs):
        if len(picture) > PICTURE_BYTES:
            yield f"stores a picture of {len(picture):,} bytes; {PICTURE_BYTES:,} is the most"
    for _, text in texts(cell.outputs):
        if found := OWN_PATH.search(text):
            yield f"shows a path of one machine: {text[found.start() :][:60]!r}"


def _markers(cell: NotebookNode) -> set[str]:
    """Tags, and nbval's markers in comments, spelled as tags."""
    comments = re.findall(r"^\s*#\s*(NBVAL_\w+)", cell.source, flags=re.MULTILINE)
    return {*cell.metadata.get("tags", []), *(name.lower().replace("_", "-") for name in comments)}
