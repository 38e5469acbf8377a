"""Puzzles of schedules in a notebook: rows as text in, the order in time and a ruling out.

schedule_puzzle()                           # which there are
schedule_puzzle("two ranks")                # what is asked
schedule_puzzle("two ranks", '''
    F0 F1 B0 B1
    F0 F1 B0 B1
''')
"""

import base64
from html import escape
from typing import Any

from labkit import viz
from labkit.grade.puzzles import PUZZLES, Ruling, get_puzzle, solve
from labkit.grade.verdict import Outcome, ink
from labkit.notebook.shown import FAINT, Shown, box
from labkit.pipeline import Timing, in_time

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
        colour = _COLOURS.get(ruling.outcome, "#0072b2")
        headline = (
            f'<div style="font-weight: 600; color: {ink(colour)}">{escape(ruling.headline)}</div>'
        )
        picture = "" if ruling.timing is None else picture_html(ruling.timing)
        body = headline + picture + _paragraphs_html(ruling.paragraphs)
        super().__init__(repr(ruling), box(body, colour))

    def __bool__(self) -> bool:
        return bool(self.ruling)


def schedule_puzzle(name: str | None = None, rows: Any = None) -> Shown:
    """Show a puzzle, or with `rows` the ruling on an answer; without a name, list all puzzles.

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
    puzzle = get_puzzle(name)
    title = f"<b>{escape(puzzle.name)}</b>"
    grade = f'<span style="color: {FAINT}">difficulty {puzzle.difficulty} of 5</span>'
    story = f"<div>{escape(puzzle.story)}</div>"
    return Shown(str(puzzle), box(f"{title} {grade}{story}{_paragraphs_html(puzzle.facts)}"))


def picture_html(timing: Timing) -> str:
    """Draw the order in time."""
    png = base64.b64encode(viz.schedule(timing).png()).decode()
    alt = escape(in_time(timing, most=200))
    return (
        f'<img class="labkit-picture" style="max-width: 100%; width: 900px" alt="{alt}" '
        f'src="data:image/png;base64,{png}">'
    )


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
