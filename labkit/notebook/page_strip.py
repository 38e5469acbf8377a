"""How far a reader is on a page: what is done, the minutes left, the next step.

strip("24_many_requests_at_once")     a line that follows each prediction, check, card and drill

    predictions 4 of 9 · exercises 1 of 4 · cards and drills 0 of 7
    about 40 minutes left · next: predict under "Static and continuous batching"

The page itself says what there is to do: its `predict` calls, its links to exercises, and the names
of cards and drills in its text. Minutes are words / 60 + lines of code / 7 of the cells after the
last thing done.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple
from weakref import WeakMethod

import ipywidgets as widgets

from labkit.grade.catalog import load_catalog
from labkit.grade.workspace import find_workspace
from labkit.interview.cards import load_bank
from labkit.interview.cards.card import anchor
from labkit.interview.drills import DRILLS
from labkit.notebook.shown import WithWidget, box, run_it
from labkit.progress import events, store

PREDICTIONS, EXERCISES, PRACTICE = "predictions", "exercises", "cards and drills"
_WAYS = {PREDICTIONS: "predict", EXERCISES: "write", PRACTICE: "answer"}
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
_WORD = re.compile(r"\w[\w'’-]*")
_NOT_READ = re.compile(r"!\[[^\]]*\]|<[^>]+>|(?<=\])\([^)]*\)")
_HEADING = re.compile(r"^#{1,4} +(.+?) *$", re.M)
_PREDICT = re.compile(r"\bpredict\(\s*[\"']([\w-]+)[\"']")
_EXERCISE = re.compile(r"exercises/(\w+)\.py\b")
_NAME = re.compile(r"`([a-z][\w-]*)`")


class Step(NamedTuple):
    """Something to do on a page."""

    kind: str
    name: str
    cell: int
    heading: str


@dataclass(frozen=True, slots=True)
class Page:
    """Steps and minutes of a page."""

    steps: tuple[Step, ...]
    minutes: tuple[float, ...]
    """Minutes of each cell."""


def minutes_of(cell: dict[str, Any]) -> float:
    """Minutes to read a cell of a notebook."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return count_words(source) / 60
    return sum(1 for line in source.splitlines() if line.strip()) / 7


def count_words(text: str) -> int:
    """Count the words of Markdown, without fences, tags, addresses and pictures' texts."""
    return len(_WORD.findall(_NOT_READ.sub("", _FENCE.sub("", text))))


def read_page(notebook: dict[str, Any]) -> Page:
    """Read a notebook, given as the JSON of its file."""
    found: dict[tuple[str, str], Step] = {}
    heading = ""
    for index, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        is_text = cell["cell_type"] == "markdown"
        for match in _HEADING.finditer(source) if is_text else ():
            heading = match[1]
        for kind, name in _named(source, is_text):
            found.setdefault((kind, name), Step(kind, name, index, heading))
    return Page(tuple(found.values()), tuple(map(minutes_of, notebook["cells"])))


def _named(source: str, is_text: bool) -> Iterator[tuple[str, str]]:
    if not is_text:
        yield from ((PREDICTIONS, name) for name in _PREDICT.findall(source))
        return
    yield from ((EXERCISES, name) for name in _EXERCISE.findall(source) if name in load_catalog())
    practised = {**load_bank(), **DRILLS}
    yield from ((PRACTICE, name) for name in _NAME.findall(source) if name in practised)


def _is_done(step: Step) -> bool:
    if step.kind == PREDICTIONS:
        return bool(events(step.name, "prediction"))
    if step.kind == EXERCISES:
        return any(event.detail.get("outcome") == "passed" for event in events(step.name, "check"))
    room = "drill" if step.name in DRILLS else "card"
    return bool(events(f"{room}/{step.name}", "answer"))


class Strip(WithWidget):
    """The line that `strip` shows. `text` is what it says now."""

    def __init__(self, page: Page) -> None:
        """See `strip`."""
        self._page = page
        self._widget = widgets.HTML()
        self.text = ""
        self.refresh()
        _follow(self.refresh)

    def refresh(self) -> None:
        """Read the progress store again."""
        steps = self._page.steps
        done = [step for step in steps if _is_done(step)]
        reached = max((step.cell for step in done), default=-1)
        left = sum(self._page.minutes[reached + 1 :])
        counts = _counts(steps, done)
        undone = [step for step in steps if step not in done]
        after = [step for step in undone if step.cell > reached] or undone
        self.text = f"{counts}; about {left:.0f} minutes left"
        html = f"<b>{counts}</b><br>about {left:.0f} minutes left · "
        if after:
            way = f'{_WAYS[after[0].kind]} under "{after[0].heading}"'
            self.text += f"; next: {way}"
            html += f'next: <a href="#{anchor(after[0].heading)}">{escape(way)}</a>'
        else:
            html += "all of it is done"
        self._widget.value = box(html)

    def __repr__(self) -> str:
        return f"{_counts(self._page.steps)}; {sum(self._page.minutes):.0f} minutes"

    def _static_html(self) -> str:
        return box(f"{self!r}<br>{run_it('see how far you are.')}")


def strip(page: str) -> Strip:
    """Show how far the reader is on a page of the course, by the name of its file.

    Raises FileNotFoundError if the course has no such page.
    """
    file = find_workspace().root / "notebooks" / f"{page}.ipynb"
    return Strip(read_page(json.loads(file.read_text(encoding="utf-8"))))


def _counts(steps: tuple[Step, ...], done: list[Step] | None = None) -> str:
    """Say how many steps of each kind there are, and of them how many are done."""
    parts = []
    for kind in (PREDICTIONS, EXERCISES, PRACTICE):
        own = [step for step in steps if step.kind == kind]
        so_far = "" if done is None else f"{sum(step in done for step in own)} of "
        if own:
            parts.append(f"{kind} {so_far}{len(own)}")
    return " · ".join(parts)


def _follow(refresh: Callable[[], None]) -> None:
    """Call after each write to the progress store, for as long as the strip lives."""
    method = WeakMethod(refresh)

    def call() -> None:
        if (found := method()) is not None:
            found()
        else:
            store.after_writing.remove(call)

    store.after_writing.append(call)
