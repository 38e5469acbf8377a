"""Draw it on a page: a grid to fill by mouse or keys, checked by replaying it.

draw("ring-4")       a drawing; draw() lists them

    the task
              step 1  step 2  ...
    rank 0    [1:0 ]  [    ]
    (Check) (Continue the pattern) (Hint) (Show an answer)
    rank 2, step 3: rank 3 has the contributions of ..., and gets ...
"""

import re
from html import escape
from importlib.resources import files
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from labkit.interview.draw import Drawing, all_drawings, get_drawing
from labkit.notebook.controls import (
    after_fields,
    button,
    capture_warnings,
    note,
    page,
    row,
    say,
    show,
)
from labkit.notebook.shown import Shown, WithWidget, box, run_it

_NUMBER = re.compile(r"\d+")


class Grid(anywidget.AnyWidget):
    """The fields, in the browser. See moving/grid.mjs."""

    _esm = (files("labkit.notebook.moving") / "grid.mjs").read_text("utf-8")
    rows = traitlets.List(traitlets.Unicode()).tag(sync=True)
    columns = traitlets.List(traitlets.Unicode()).tag(sync=True)
    cells = traitlets.List(traitlets.List(traitlets.Unicode())).tag(sync=True)
    wrong = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.on_msg(self._write)

    def _write(self, _: Any, message: dict[str, Any], __: Any = None) -> None:
        """Take what was written into a field."""
        row, column = message["cell"]
        cells = [list(each) for each in self.cells]
        cells[row][column] = message["text"]
        self.cells = cells


class DrawIt(WithWidget):
    """The box that `draw` shows. Its methods do what its buttons do."""

    def __init__(self, drawing: Drawing) -> None:
        """See `draw`."""
        self.drawing = drawing
        self.grid = Grid(
            rows=list(drawing.rows), columns=list(drawing.columns), cells=drawing.empty
        )
        self._ruling, self._hint, self._is_answer_shown = note(), note(), False
        self._continue = button(
            "Continue the pattern",
            after_fields(self.continue_pattern),
            tooltip="Fill each column from its first two cells, and empty columns from the two "
            "before: numbers go on as these two differ",
        )
        title = widgets.HTML(
            f'<div class="prompt">{escape(drawing.title)}</div><p>{escape(drawing.prompt)}</p>'
        )
        buttons = [
            button("Check", after_fields(self.check)),
            self._continue,
            button("Hint", self.hint),
            button("Show an answer", self.answer),
        ]
        show(self._continue, ":" in "".join("".join(each) for each in drawing.answer))
        self._widget = page([title, self.grid, row(buttons), self._ruling, self._hint])

    def check(self) -> bool:
        """Rule on what is drawn; the first cell that is wrong gets the cursor.

        Nothing is stored once the answer was shown.
        """
        keep = not self._is_answer_shown
        ruling, captured = capture_warnings(lambda: self.drawing.rule(self.grid.cells, keep=keep))
        self.grid.wrong = []
        self.grid.wrong = list(ruling.place or ())
        mark = "✓" if ruling.is_right else "✗"
        say(self._ruling, f"<p>{mark} {escape(ruling.text)}</p>{captured.html}")
        return ruling.is_right

    def continue_pattern(self) -> None:
        """Fill empty cells below two that are filled, and empty columns behind two."""
        self.grid.cells = continued(self.grid.cells)

    def hint(self) -> None:
        """Show the invariant."""
        say(self._hint, f"<p>{escape(self.drawing.hint)}</p>")

    def answer(self) -> None:
        """Fill in cells that are right."""
        self._is_answer_shown = True
        self.grid.wrong = []
        self.grid.cells = [list(each) for each in self.drawing.answer]

    def __repr__(self) -> str:
        grid = self.drawing.text_of(self.drawing.empty)
        return f"{self.drawing.title}\n{self.drawing.prompt}\n{grid}"

    def _static_html(self) -> str:
        about = f"<b>{escape(self.drawing.title)}</b><div>{escape(self.drawing.prompt)}</div>"
        return box(about + run_it("draw it."))


def continued(cells: list[list[str]]) -> list[list[str]]:
    """Return the cells with patterns gone on: `1:0`, `2:1`, then `3:2`, modulo the rows.

    First each column whose first two cells alone are filled, then the row behind them.
    """
    filled = [list(row) for row in cells]
    n = len(filled)
    for column in range(len(filled[0])):
        if column >= 2 and not any(row[column] for row in filled):
            for row in filled:
                row[column] = _next(row[column - 2], row[column - 1], n)
        below = range(2, n)
        if n > 2 and not any(filled[r][column] for r in below):
            for r in below:
                filled[r][column] = _next(filled[r - 2][column], filled[r - 1][column], n)
    return filled


def _next(before: str, last: str, n: int) -> str:
    """Return `3:2` after `1:0` and `2:1`; "" unless the two differ in numbers alone."""
    numbers = [[int(each) for each in _NUMBER.findall(cell)] for cell in (before, last)]
    if not last or _NUMBER.sub("#", before) != _NUMBER.sub("#", last):
        return ""
    following = iter([(2 * b - a) % n for a, b in zip(*numbers, strict=True)])
    return _NUMBER.sub(lambda _: str(next(following)), last)


def draw(name: str | None = None) -> DrawIt | Shown:
    """Show a drawing to fill, as the last line of a cell; without a name, list all.

    The outcome is stored. Raises UnknownDrawing (a LookupError), with near names.
    """
    if name is None:
        every = all_drawings()
        items = "".join(
            f"<tr><td><code>{escape(each.name)}</code></td><td>{escape(each.title)}</td></tr>"
            for each in every.values()
        )
        text = "\n".join(f"{each.name:22}{each.title}" for each in every.values())
        return Shown(text, box(f"<table>{items}</table>"))
    return DrawIt(get_drawing(name))
