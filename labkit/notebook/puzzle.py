"""Puzzles of schedules in a notebook: rows as text in, the order in time and a ruling out.

schedule_puzzle()                           # which there are
schedule_puzzle("two ranks")                # what is asked, a field for rows, and Check
schedule_puzzle("two ranks", '''
    F0 F1 B0 B1
    F0 F1 B0 B1
''')
"""

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit.grade.puzzles import PUZZLES, Puzzle, Ruling, get_puzzle, solve
from labkit.grade.verdict import Outcome, ink
from labkit.notebook.controls import button, capture_warnings, note, page, row, rows_field, say
from labkit.notebook.schedule_svg import schedule_image, schedule_svg
from labkit.notebook.shown import FAINT, Shown, box, scrolled
from labkit.pipeline import Timing

_COLOURS = {
    Outcome.PASSED: "#009e73",
    Outcome.OVER_BUDGET: "#e69f00",
    Outcome.WRONG: "#d55e00",
}


# A page of nbconvert lets <pre> inherit the font of the text, in which columns do not align.
_ROWS = "overflow-x: auto; font-family: monospace"


class ShownRuling(Shown):
    """A ruling as a cell shows it; True where the answer passes."""

    def __init__(self, ruling: Ruling) -> None:
        self.ruling = ruling
        super().__init__(repr(ruling), _ruling_html(ruling, schedule_image))

    def __bool__(self) -> bool:
        return bool(self.ruling)


class PuzzlePage(Shown):
    """A puzzle with a field for rows and a button; without a browser, what is asked."""

    def __init__(self, puzzle: Puzzle) -> None:
        """See `schedule_puzzle`."""
        self._puzzle = puzzle
        asked = _puzzle_html(puzzle)
        super().__init__(str(puzzle), box(asked))
        self._rows, self._ruling = rows_field("Your rows, a line per rank, rank 0 first"), note()
        parts = [widgets.HTML(asked), self._rows, row([button("Check", self.check)]), self._ruling]
        self._widget = page(parts)

    def check(self) -> Ruling:
        """Judge the rows in the field, show the ruling, and remember its outcome."""
        ruling, captured = capture_warnings(lambda: solve(self._puzzle.name, self._rows.value))
        say(self._ruling, _ruling_html(ruling, _live) + captured.html)
        return ruling

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, **super()._repr_mimebundle_()}


def schedule_puzzle(name: str | None = None, rows: Any = None) -> Shown:
    """Show a puzzle and a field for the answer; with `rows` the ruling; without a name, a list.

    rows: text with a line per rank, rank 0 first, such as "F0 F1 B0 B1"; a list of lines; or a
    Schedule, such as plan(one_f_one_b, 2, 2). Raises UnknownPuzzle (a LookupError), which lists the
    names; TypeError for rows without a name. The outcome is stored, as with exercises.
    """
    if name is None:
        if rows is not None:
            raise TypeError(
                "rows without a puzzle: give its name first, as in "
                f"schedule_puzzle({next(iter(PUZZLES))!r}, rows); schedule_puzzle() lists them"
            )
        return Shown(_list_text(), box(_list_html()))
    if rows is not None:
        return ShownRuling(solve(name, rows))
    return PuzzlePage(get_puzzle(name))


def _puzzle_html(puzzle: Puzzle) -> str:
    title = f"<b>{escape(puzzle.name)}</b>"
    grade = f'<span style="color: {FAINT}">difficulty {puzzle.difficulty} of 5</span>'
    story = f"<div>{escape(puzzle.story)}</div>"
    return f"{title} {grade}{story}{_paragraphs_html(puzzle.facts)}"


def _ruling_html(ruling: Ruling, picture: Callable[[Timing], str]) -> str:
    colour = _COLOURS.get(ruling.outcome, "#0072b2")
    look = f"font-weight: 600; color: {ink(colour)}"
    headline = f'<div style="{look}">{escape(ruling.headline)}</div>'
    drawn = "" if ruling.timing is None else picture(ruling.timing)
    return box(headline + drawn + _paragraphs_html(ruling.paragraphs), colour)


def _live(timing: Timing) -> str:
    return scrolled(schedule_svg(timing), "the order in time")


def _paragraphs_html(paragraphs: list[tuple[str, str]]) -> str:
    return "".join(_paragraph_html(label, text) for label, text in paragraphs)


def _paragraph_html(label: str, text: str) -> str:
    first, _, rows = text.partition("\n")
    marked = f'<pre style="{_ROWS}">{escape(rows)}</pre>' if rows else ""
    return f'<div style="margin-top: .3em"><b>{label}.</b> {escape(first)}</div>{marked}'


def _list_html() -> str:
    rows = "".join(
        f'<tr><td style="text-align: left; padding-right: 2em">{escape(name)}</td>'
        f'<td style="text-align: left">{"&#9733;" * puzzle.difficulty}</td></tr>'
        for name, puzzle in PUZZLES.items()
    )
    return f"<table>{rows}</table>"


def _list_text() -> str:
    width = max(map(len, PUZZLES))
    return "\n".join(
        f"{name.ljust(width)}  {'*' * puzzle.difficulty}" for name, puzzle in PUZZLES.items()
    )
