"""Make of a stored notebook what a page without a kernel shows.

Links lead to pages. A picture has words, for who does not see it. What asks the reader to run a
cell says what the lab does there, or becomes a part that runs in the page:

    <div class="lab-live" data-call="card('co-8')">what the notebook stores</div>
"""

import ast
import base64
import hashlib
import re
from html import escape
from pathlib import Path
from typing import Any

from book.links import Links

# Names of labkit.notebook whose call with literal arguments runs in the page.
LIVE = frozenset(
    "cache_calculator calculator card dashboard design_round docket draw drill layout_planner"
    " memory_calculator mesh_explorer mock_interview pipeline_calculator quiz schedule_puzzle"
    " vote".split()
)
_CARD = re.compile(r"`([a-z]{2}-\d+[a-z]?)`")
_RUN_CELLS = "Run the cells in order with Shift+Enter."
_STORED = "The outputs below are stored ones. In the lab you run the cells with Shift+Enter."
_ASKS = re.compile(
    r"(?:<br>)?(<span[^>]*>)?(Run this cell(?:, and| to) [^<]*?)\.?(</span>)", re.DOTALL
)
_DATA = re.compile(r'(<img\b[^>]*?\bsrc=")data:image/(png|svg\+xml);base64,([^"]+)(?=")')


def staged(path: str, notebook: dict[str, Any], links: Links, pictures: Path) -> dict[str, Any]:
    """Return the notebook as a page reads it. pictures: a folder for those inside of HTML."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = source.replace(_RUN_CELLS, _STORED)
            source = links.in_markdown(path, source)
            if "**Practise it.**" in source:
                source = with_cards(source)
            cell["source"] = source
        elif cell["cell_type"] == "code":
            _stage_code(path, cell, source, links, pictures)
    notebook["metadata"].pop("widgets", None)
    return notebook


def with_cards(text: str) -> str:
    """Make a link of each card that Markdown names, such as `co-8`, to its page."""
    return _CARD.sub(r"[\1](../cards/\1.md)", text)


def _stage_code(path: str, cell: dict[str, Any], source: str, links: Links, pictures: Path) -> None:
    for output in cell["outputs"]:
        data = output.get("data", {})
        data.pop("application/vnd.jupyter.widget-view+json", None)
        if "text/html" in data:
            html = links.in_html(path, "".join(data["text/html"]))
            data["text/html"] = with_files(html, pictures, "../")
    words = [
        "".join(output["data"].get("text/plain", "")).strip("<>\n ")
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
    ]
    if words:
        cell["metadata"]["mystnb"] = {"image": {"alt": "; ".join(filter(None, words))}}
    calls = literal_calls(source)
    if calls and calls[0].startswith("strip("):
        cell["metadata"].setdefault("tags", []).append("remove-input")
    for call, output in zip(reversed(calls), reversed(cell["outputs"])):  # display() comes last
        if call.partition("(")[0] in LIVE:
            output["data"] = {"text/html": live(call, _html_of(output, pictures))}
    for output in cell["outputs"]:
        if "text/html" in output.get("data", {}):
            output["data"]["text/html"] = in_the_lab(output["data"]["text/html"])


def literal_calls(source: str) -> list[str]:
    """Return what a cell's last line shows, if it is a call, or display() of several.

    "" stands for each of them that is no call of a name, or has an argument that is no literal.
    [] for any other last line, and for a cell that is no Python alone.
    """
    try:
        last = ast.parse(source).body[-1]
    except (SyntaxError, IndexError):
        return []
    if not isinstance(last, ast.Expr):
        return []
    shown = [last.value]
    if isinstance(last.value, ast.Call) and ast.unparse(last.value.func) == "display":
        shown = last.value.args
    return [ast.unparse(each) if _is_literal(each) else "" for each in shown]


def _is_literal(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return False
    try:
        for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
            ast.literal_eval(value)
    except ValueError:
        return False
    return True


def live(call: str, html: str) -> str:
    """Return the static answer of a part that runs in the page, in the element that it replaces."""
    more = " data-progress" if call.startswith("dashboard(") else ""  # progress to and from a file
    return f'<div class="lab-live" data-call="{escape(call)}"{more}>{without_asking(html)}</div>'


def without_asking(html: str) -> str:
    """Remove the words that ask the reader to run a cell."""
    return _ASKS.sub("", html)


def in_the_lab(html: str) -> str:
    """Say what the lab does where HTML asks the reader to run a cell."""
    return _ASKS.sub(_said, html)


def _said(match: re.Match[str]) -> str:
    asked = match[2].removeprefix("Run this cell").removeprefix(" to ")
    if asked == "see how far you are":
        return ""
    opening = match[0][: match.start(2) - match.start()]
    if asked.startswith(","):
        return f"{opening}In the lab this picture moves.{match[3]}"
    verb, colon, rest = asked.partition(":")
    verb = re.sub(r"^be ", "are ", verb)
    return f"{opening}In the lab you {verb} here{colon}{rest}.{match[3]}"


def with_files(html: str, pictures: Path, to_root: str) -> str:
    """Write pictures inside of HTML into files. to_root: the way from the page to the site."""

    def moved(match: re.Match[str]) -> str:
        name = _kept(base64.b64decode(match[3]), match[2].partition("+")[0], pictures)
        return f"{match[1]}{to_root}_static/pictures/{name}"

    return _DATA.sub(moved, html)


def _html_of(output: dict[str, Any], pictures: Path) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return str(data["text/html"])
    plain = "".join(data.get("text/plain", output.get("text", "")))
    if "image/png" not in data:
        return f"<pre>{escape(plain)}</pre>"
    name = _kept(base64.b64decode("".join(data["image/png"])), "png", pictures)
    alt = escape(plain.strip("<>\n "))
    return f'<img class="labkit-picture" src="../_static/pictures/{name}" alt="{alt}">'


def _kept(content: bytes, suffix: str, pictures: Path) -> str:
    name = f"{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
    pictures.mkdir(parents=True, exist_ok=True)
    (pictures / name).write_bytes(content)
    return name
