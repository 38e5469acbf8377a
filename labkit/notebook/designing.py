"""A design round on a page: a briefing, what to ask back, the plan, and facts that change.

design_round()                    a new briefing; design_round(seed=3): the same each time
design_round("70b-15t")           one of the book

    the interviewer's words                            44 of 45 minutes left
    (What does a GPU-hour cost? · 1 min) ...           each answers, and costs minutes
    Layout [dp=8 tp=8 pp=4 ...] (Propose)              whether it fits
    Seconds of a step [12 s] (Submit)                  before the planner says it
    each part in words; then its points to tick, and a model answer
    each change: the step after it
    (Report)                                           scores, what was left out, pictures
"""

import time
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from labkit.interview.design import NUMBERS, DesignRound, draw_briefing, get_briefing
from labkit.interview.design.briefing import Part
from labkit.interview.design.report import html_of, markdown_of
from labkit.interview.page import html_of as html_of_markdown
from labkit.notebook.controls import (
    KEEPS_FILES,
    button,
    capture_warnings,
    note,
    on_enter,
    page,
    row,
    say,
    show,
)
from labkit.notebook.shown import WithWidget, box, run_it


class DesignView(WithWidget):
    """The box that `design_round` shows. `round` has what was answered."""

    def __init__(self, round_: DesignRound, on_over: Callable[[], object] = lambda: None) -> None:
        """on_over: called once, with the first report."""
        self.round, self._on_over = round_, on_over
        self._clock, self._speed, self._trouble = widgets.HTML(), note(), note()
        self._report, self._saved = note(), note()
        self._file = widgets.Text(
            value="design.html", description="Save the report as", layout={"width": "24em"}
        )
        self._save = row([self._file, button("Save", self.save)])
        show(self._save, False)
        first, *others = round_.briefing.parts
        questions = self._questions()
        self.focus = questions[0].children[0].focus
        self.widget = widgets.VBox(
            [
                widgets.HTML(f'<div class="prompt">{escape(round_.briefing.story)}</div>'),
                self._clock,
                _heading("Ask back: each question costs minutes"),
                *questions,
                *self._part(first),
                _heading("Layout"),
                self._field("Layout", "dp=8 tp=8 pp=4 zero=1 recompute=selective", self._propose),
                *map(self._number, ("step", "days")),
                self._speed,
                *(part for each in others for part in self._part(each)),
                *self._changes(),
                row([button("End the round and see the report", self.report)]),
                self._trouble,
                self._report,
                self._save,
                self._saved,
            ]
        )
        self._tick()
        self._is_over = False

    def report(self) -> None:
        """Show the report, and store the score."""
        _, captured = capture_warnings(self.round.finish)
        say(self._trouble, captured.html)
        say(self._report, html_of_markdown(markdown_of(self.round)))
        show(self._save, KEEPS_FILES)
        if not self._is_over:
            self._is_over = True
            self._on_over()

    def save(self) -> None:
        """Write the report as a page with pictures; a file that exists stays as it is."""
        try:
            with Path(self._file.value).open("x", encoding="utf-8") as opened:
                opened.write(html_of(self.round))
        except OSError as error:
            say(self._saved, f"<p>✗ {escape(self._file.value)}: {escape(str(error.strerror))}</p>")
        else:
            say(self._saved, f"<p>The report is in {escape(self._file.value)}</p>")

    def _tick(self) -> None:
        left = self.round.left_s / 60
        text = f"{left:.0f} minutes left" if left > 0 else "The time is up; go on if you like"
        self._clock.value = f'<span class="faint">{text}</span>'

    def _questions(self) -> list[Any]:
        found: list[Any] = []
        for place, each in enumerate(self.round.briefing.questions):
            answer = note()
            ask = partial(self._clarify, place, answer)
            found += [row([button(f"{each.question} · {each.minutes:g} min", ask)]), answer]
        return found

    def _clarify(self, place: int, answer: Any) -> None:
        say(answer, f"<p>{escape(self.round.clarify(place))}</p>")
        self._tick()

    def _field(self, label: str, example: str, judge: Callable[[str], str]) -> Any:
        """Return a field with a button; its ruling below it."""
        entry = widgets.Text(description=label, placeholder=example, layout={"width": "100%"})
        ruling = note()

        def submit(text: str) -> None:
            if text.strip():
                say(ruling, f"<p>{escape(judge(text.strip()))}</p>")
            self._tick()

        return widgets.VBox([entry, row([button("Submit", on_enter(entry, submit))]), ruling])

    def _propose(self, text: str) -> str:
        return self.round.propose(text).text

    def _predict(self, name: str) -> Callable[[str], str]:
        def judge(text: str) -> str:
            ruling = self.round.predict(name, text)
            if {"step", "days"} <= self.round.numbers.keys():
                say(self._speed, f"<p><b>{escape(self.round.speed)}</b></p>")
            return ruling.text

        return judge

    def _part(self, part: Part) -> list[Any]:
        entry = widgets.Textarea(
            description=part.name.capitalize(),
            rows=4,
            continuous_update=False,
            layout={"width": "100%"},
        )
        points = [
            widgets.Checkbox(description=point, indent=False, layout={"width": "100%"})
            for point in part.points
        ]
        model = widgets.HTML(f"<p><b>A model answer.</b> {escape(part.answer)}</p>")
        hidden = widgets.VBox([*points, model])
        show(hidden, False)

        def keep(_: Any = None) -> None:
            said = {n for n, each in enumerate(points, 1) if each.value}
            self.round.tell(part.name, entry.value, said)

        for each in (entry, *points):
            each.observe(keep, names="value")
        label = f"Points that are listened for: {part.name}"
        reveal = button(label, lambda: show(hidden, True))
        found = [_heading(part.asks), entry, row([reveal]), hidden]
        if part.name != "checkpoints":
            return found
        # Before its model answer, which says the interval.
        return [self._number("interval"), *found]

    def _number(self, name: str) -> Any:
        asks, unit = NUMBERS[name]
        return self._field(f"{asks} ({unit})", "", self._predict(name))

    def _changes(self) -> list[Any]:
        found: list[Any] = [_heading("What changes")]
        for place, change in enumerate(self.round.briefing.changes):

            def judge(text: str, place: int = place) -> str:
                return self.round.meet(place, text).text

            found += [
                widgets.HTML(f"<p>{escape(change.says)}</p>"),
                self._field("Seconds of a step", "", judge),
            ]
        return found

    def __repr__(self) -> str:
        return f"Design round: {self.round.briefing.name}\n{self.round.briefing.story}"

    @property
    def _widget(self) -> Any:
        return page([self.widget])

    def _static_html(self) -> str:
        asked = f"<b>Design round.</b> {escape(self.round.briefing.story)}<br>"
        return box(asked + run_it("design it."))


def _heading(text: str) -> Any:
    return widgets.HTML(f"<h4>{escape(text)}</h4>")


def design_round(
    name: str | None = None,
    seed: int | None = None,
    model: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> DesignView:
    """Show a design round, as the last line of a cell.

    name: a briefing of the book; None: a new one. seed: the same one draws the same briefing.
    model: the name of a model or the path of its config.json, for a new one. The score is stored
    with the report. Raises UnknownBriefing (a LookupError), and ValueError for a model that no
    drawn cluster can train.
    """
    briefing = get_briefing(name) if name else draw_briefing(seed, model)
    return DesignView(DesignRound(briefing, clock))
