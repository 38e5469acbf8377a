"""Commit to a number before the run; see afterwards how far off it was.

predict("ring-bytes", "How many bytes does rank 0 send?", unit="B")   # a box to type into
...
reveal("ring-bytes", result.traffic[0].sent_bytes, unit="B")          # You said ... Measured: ...
"""

from html import escape
from typing import Any

import ipywidgets as widgets

from labkit.calc.typed import in_unit, text_of
from labkit.calc.units import counted, number_text
from labkit.grade.ink import ink
from labkit.notebook import predictions
from labkit.notebook.controls import on_enter
from labkit.notebook.predictions import Prediction
from labkit.notebook.shown import FAINT, Shown, box

_WRONG = "#d55e00"
_RIGHT = "#009e73"
MEASURED = "Measured"
_LONG = ("min", "h", "days")  # of these a number in seconds tells nobody anything


class PredictBox:
    """The box that `predict` shows. `commit(text)` does what its button does."""

    def __init__(
        self, key: str, question: str, answer: float | str | None, tolerance: float, unit: str
    ) -> None:
        """See `predict`."""
        self.key = key
        self.question = question
        self._unit = unit
        self._tolerance = tolerance
        self._answer = None if answer is None else in_unit(answer, unit)
        predictions.ask(key, question)
        example = "a number, like 6, 2/3 or 1e9"
        if unit:
            example = f"a number {'of' if counted(unit) else 'in'} {unit}"
        self._entry = widgets.Text(
            description="Your prediction",
            placeholder=example,
            style={"description_width": "initial"},
            layout={"width": "24em"},
        )
        self._button = widgets.Button(description="Commit", layout={"width": "6em"})
        self._status = widgets.HTML()
        commit = on_enter(self._entry, self.commit)
        self._button.on_click(lambda _: commit())
        self._widget = widgets.VBox(
            [
                widgets.HTML(f"<b>Predict.</b> {escape(question)}"),
                widgets.HBox([self._entry, self._button]),
                self._status,
            ],
            layout={"border_left": "4px solid #0072b2", "padding": "2px 12px", "margin": "4px 0"},
        )
        earlier = predictions.load(key)
        if earlier is not None:
            self._say(f"Earlier you committed to {earlier.text}. Run on, or commit again.", FAINT)

    def commit(self, text: str) -> str:
        """Take the prediction, or say what is wrong with it; returns what the box then says."""
        try:
            quantity = in_unit(text, self._unit)
        except ValueError as error:
            return self._say(f"{error}.", ink(_WRONG))
        said = self._with_unit(text.strip())
        predictions.save(self.key, Prediction(said, quantity))
        read_as = text_of(quantity)
        committed = f"Committed: {said}"
        if not _keeps(self._unit) and read_as != said:
            committed += f" (read as {read_as})"
        if self._answer is None:
            return self._say(f"{committed}. Run on, and see.", ink(_RIGHT))
        words = predictions.verdict(quantity, self._answer, self._tolerance)
        colour = _RIGHT if predictions.judge(self.key, words) else _WRONG
        answer = text_of(self._answer)
        return self._say(f"{committed}. It is {answer}. {words}", ink(colour))

    def _with_unit(self, text: str) -> str:
        """What was typed; a bare number with the unit that it was read in."""
        is_bare = text[-1] in ".0123456789"
        is_share = self._unit == "%" and "/" in text  # a third, not a third of a percent
        return f"{text} {self._unit}" if self._unit and is_bare and not is_share else text

    def _say(self, message: str, colour: str) -> str:
        self._status.value = f'<span style="color: {colour}">{escape(message)}</span>'
        return message

    def __repr__(self) -> str:
        return f"Predict. {self.question}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # The static forms leave out what was typed: they are the same for every reader.
        static = f"<b>Predict.</b> {escape(self.question)}"
        static += f'<br><span style="color: {FAINT}">Run this cell to commit to a number.</span>'
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, "text/plain": repr(self), "text/html": box(static)}


def predict(
    key: str,
    question: str = "Your prediction?",
    *,
    answer: float | str | None = None,
    tolerance: float = 0.0,
    unit: str = "",
) -> PredictBox:
    """A box in which the reader commits to a number; the last line of a cell shows it.

    key: under which the prediction is kept, on disk, from session to session.
    answer: where given, the box answers at once; without it, `reveal` does, after the run.
    tolerance: the relative error that still counts as right, 0.1 for 10 %.
    unit: of a number typed without one ("" for counts, or B, MB, GB, KiB, ms, s, ranks, ...).

    Understands 6, 1,000, 2/3, 1e9, 75%, 1.5 MB, 4.9 ms, and says so where it doesn't.
    Raises ValueError for a unit it does not know and for an answer that is no number.
    """
    in_unit(0, unit)
    predictions.check_tolerance(tolerance)
    return PredictBox(key, question, answer, tolerance, unit)


def reveal(
    key: str,
    truth: float,
    *,
    unit: str = "",
    tolerance: float = 0.0,
    varies: bool = False,
    source: str = MEASURED,
) -> Shown:
    """The question of `key`, what was predicted, and beside it what is true, in words.

    truth: in `unit`. source: where it comes from, as it stands in front of it: "Computed" for what
    follows by calculation, "torch says" for one of torch's constants. varies: it is different in
    every run; marked with ~, as measured seconds are, it is not compared when the notebook is
    tested. Without a prediction the true number is folded: a stored notebook does not give it away.
    """
    predictions.check_tolerance(tolerance)
    quantity = in_unit(truth, unit)
    mark = "~" if varies or (source == MEASURED and quantity.dimension == "seconds") else ""
    question = predictions.question_of(key)
    told = f"{source}: {mark}{_told(truth, unit)}."
    prediction = predictions.load(key)
    if prediction is None:
        return _folded(question, told)
    words = predictions.verdict(prediction.quantity, quantity, tolerance)
    is_right = predictions.judge(key, words)
    text = f"You said {prediction.text}. {told} {words}"
    return _beside(question, text, _RIGHT if is_right else _WRONG)


def _told(truth: float, unit: str) -> str:
    """A number as a reader sees it: minutes and what is counted in the question's own unit."""
    return f"{number_text(truth)} {unit}" if _keeps(unit) else text_of(in_unit(truth, unit))


def _keeps(unit: str) -> bool:
    """Whether numbers are told in this very unit, and not in the one of their size."""
    return unit in _LONG or bool(counted(unit))


def _folded(question: str, told: str) -> Shown:
    """The true number behind a click."""
    text = f"{told} (You made no prediction.)"
    summary = escape(question or "The answer") + " (You made no prediction. Click for the answer.)"
    html = f"<details><summary>{summary}</summary>{escape(told)}</details>"
    return Shown(f"{question}\n{text}" if question else text, box(html))


def _beside(question: str, text: str, colour: str) -> Shown:
    """Both in a box; only the text where this notebook has not asked."""
    if not question:
        return Shown(text, box(f"<div>{escape(text)}</div>", colour))
    html = f"<b>{escape(question)}</b><br>{escape(text)}"
    return Shown(f"{question}\n{text}", box(f"<div>{html}</div>", colour))
