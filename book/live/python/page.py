"""The lab's notebook widgets on a web page: ipywidgets whose messages go to a worker's page.

worker.mjs   --  show("card('ze-1')")  -->  here   --  post("comm_open", id, state) ...  -->  page
             --  receive(id, data)     -->         --  post("comm_msg", id, data)        -->  page

`show` answers with the id of the widget to draw, or with HTML. widgets.mjs draws it. What a learner
does is stored as in a notebook: in labkit.progress's file, which the worker keeps in the browser.
"""

import ast
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import comm
from comm.base_comm import BaseComm


def post(kind: str, model: str, data: str) -> None:
    """Send a message as JSON to the page; worker.mjs puts its own function here."""


class PageComm(BaseComm):  # type: ignore[misc]
    """A channel of one widget, from here to the page."""

    def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
        """Send a message: the state at first, then what changed."""
        if (data or {}).get("method") != "echo_update":
            post(msg_type, self.comm_id, json.dumps(data))


comm.create_comm = PageComm

# ipywidgets takes create_comm when it is imported.
from ipywidgets.widgets.widget import _instances  # noqa: E402

from labkit import notebook  # noqa: E402
from labkit.progress import exchange  # noqa: E402


class Failures(logging.Handler):
    """ipywidgets logs what a callback raises, and goes on; here the page has to say it."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the exception."""
        if record.exc_info and record.exc_info[1]:
            self.raised.append(record.exc_info[1])


failures = Failures()
logging.getLogger("traitlets").addHandler(failures)


def show(call: str) -> str:
    """Return JSON with the model or the HTML of what a call of labkit.notebook shows.

    call: as in a cell, with constants as arguments: "pipeline_calculator('1F1B', ranks=8)".
    ValueError for anything else.
    """
    tree = ast.parse(call.strip(), mode="eval").body
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
        raise ValueError(f"{call!r} is no call of a name of labkit.notebook")
    values = [ast.literal_eval(each) for each in tree.args]
    named = {each.arg or "": ast.literal_eval(each.value) for each in tree.keywords}
    shown = getattr(notebook, tree.func.id)(*values, **named)
    bundle = shown._repr_mimebundle_()
    if isinstance(bundle, tuple):
        bundle = bundle[0]
    view = bundle.get("application/vnd.jupyter.widget-view+json")
    return json.dumps({"model": view["model_id"]} if view else {"html": bundle["text/html"]})


def receive(model: str, data: dict[str, Any]) -> None:
    """Hand a message of the page to its widget: {"method": "update", "state": ...}, or "custom"."""
    message = {"content": {"data": {"buffer_paths": [], **data}}, "buffers": []}
    _instances[model]._handle_msg(message)
    raised, failures.raised = failures.raised, []  # none is left for the next message
    if raised:
        raise raised[-1]


def export() -> str:
    """Return the learner's progress as `labkit import` reads it."""
    return exchange.exported()[0]


def restore(text: str) -> str:
    """Add the progress of such a file's text; say how much of it was new.

    ExchangeError says what is wrong with a text; then nothing was added.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "progress.json")
        file.write_text(text, "utf-8")
        read = exchange.import_json(file)
    return f"{read.num_added} events added, {read.num_known} were known"
