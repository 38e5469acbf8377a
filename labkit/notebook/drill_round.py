"""Numeric questions on a page, one after another, with fresh numbers each time.

drill()                             of all topics
drill("pp")                         of a group of topics; "pp-2": of one
drill("bubble_of_total", seed=3)    this one, with these numbers
case(2)                             why is this run slow? A real one, with a hidden fault
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit.interview.case_files import CASES
from labkit.interview.drills import UnknownDrill, drills_of
from labkit.interview.drills.drill import Kind
from labkit.interview.drills.drill_session import Round
from labkit.notebook.card_pages import topics_of
from labkit.notebook.controls import button, note, page, row, say, show
from labkit.notebook.drill_question import DrillQuestion
from labkit.notebook.shown import FAINT, Shown, box


class DrillRound:
    """The box that `drill` shows. `question` is the one that is asked."""

    def __init__(self, drills: Sequence[Kind], seed: int | None) -> None:
        """seed: the same one asks the same questions; None: others each time."""
        self._round = Round(drills, seed)
        self._place, self._tally = widgets.VBox(), note()
        self._another = button("Another", self.another)
        self._widget = page([self._place, row([self._another]), self._tally])
        self._ask()
        about = drills[0].title if len(drills) == 1 else topics_of(drills)
        self._static = f"{about}, with fresh numbers."
        if seed is not None and not self.question.asked.question.exhibit.page:  # nothing measured
            self._static = self.question.asked.question.prompt

    def another(self) -> None:
        """The next question of the round. One that was not finished is left behind, unrated."""
        self._ask()
        self.question.focus()

    @property
    def summary(self) -> str:
        """How the round goes, in a line."""
        return self._round.summary

    def _ask(self) -> None:
        asked = self._round.ask()
        heading = f"question {len(self._round.asked)}"
        self.question = DrillQuestion(asked, heading, self._on_over)
        self._place.children = (self.question.widget,)
        show(self._another, False)

    def _on_over(self) -> None:
        say(self._tally, f'<span class="faint">This round: {escape(self.summary)}</span>')
        show(self._another, True)
        self._another.focus()

    def __repr__(self) -> str:
        return f"Drill. {self._static}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # With a seed the static forms have the question; without, no numbers of one reader's.
        html = f'<div><b>Drill.</b> {escape(self._static)}</div><span style="color: {FAINT}">'
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        static = box(f"{html}Run this cell to answer.</span>")
        return {**bundle, "text/plain": repr(self), "text/html": static}


def drill(what: str | None = None, seed: int | None = None) -> DrillRound | Shown:
    """Numeric questions, judged at once; the last line of a cell shows it.

    what: a drill, a topic ("pp-2") or a group of topics ("pp"); None: all. seed: the same one asks
    the same questions. The first question's time runs from when the cell does.

    An answer is a number with or without its unit: 31.4 GB, 2/3, 43.8%. What was finished is kept,
    on disk. For a name that is none the box says which are near.
    """
    try:
        return DrillRound(drills_of(what), seed)
    except UnknownDrill as error:
        return Shown(f"{error}.")


def case(difficulty: int = 1, seed: int | None = None) -> DrillRound:
    """Why is this run slow? Two trainings run, with a hidden fault and without; find its cause.

    difficulty: 1 to 5, see `labkit.interview.case_files`; KeyError for others. seed: the same one
    draws the same fault. An answer is a line: cause, rank and expected gain.
    """
    return DrillRound([CASES[f"case_{difficulty}"]], seed)
