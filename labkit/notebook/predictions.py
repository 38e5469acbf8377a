"""Predict a number before the run, and see afterwards how far off it was.

predict("ring-bytes", "How many bytes does rank 0 send?", unit="B")   # a box to type into
...
reveal("ring-bytes", result.traffic[0].sent_bytes, unit="B")          # You said ... Measured: ...
"""

import math
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets

from labkit import progress
from labkit.calc.units import (
    Quantity,
    bytes_text,
    counted,
    in_unit,
    number_text,
    text_of,
    usual_mistake,
)
from labkit.grade.verdict import ink
from labkit.notebook.controls import on_enter
from labkit.notebook.shown import FAINT, Shown, WithWidget, box, run_it
from labkit.progress import practice as practised

_KIND = "prediction"
# Predictions of this process, for a learner whose disk is full or read-only.
_unsaved: dict[str, "Prediction"] = {}
# Questions of this process, which the answers repeat.
_questions: dict[str, str] = {}


class Prediction(NamedTuple):
    """A number that was committed to: as typed, and in base units."""

    text: str
    quantity: Quantity


def ask(key: str, question: str) -> None:
    """Remember the question of a key, for as long as this process."""
    _questions[key] = question


def question_of(key: str) -> str:
    """Return the question of a key; empty where this process has not asked it."""
    return _questions.get(key, "")


def save(key: str, prediction: Prediction) -> None:
    """Store a prediction, on disk where that is possible; the latest of a key counts."""
    value, dimension = prediction.quantity
    _unsaved.pop(key, None)
    progress.record(_KIND, key, text=prediction.text, value=value, dimension=dimension)
    if load(key) != prediction:  # `record` never raises: it warns, and this session goes on
        _unsaved[key] = prediction


def judge(key: str, words: str) -> bool:
    """Return whether a verdict says that the prediction was right; this counts as practice."""
    right = words.startswith(("Exactly", "Right"))
    if key not in _unsaved:
        practised.record_judged(key, right=right)
    return right


def load(key: str) -> Prediction | None:
    """Return the latest prediction of a key, from any session, or None."""
    if key in _unsaved:
        return _unsaved[key]
    events = progress.events(key, _KIND)
    if not events:
        return None
    detail: dict[str, Any] = events[-1].detail
    return Prediction(detail["text"], Quantity(detail["value"], detail["dimension"]))


def verdict(predicted: Quantity, measured: Quantity, tolerance: float = 0.0) -> str:
    """Say in a sentence how a prediction compares.

    tolerance: the relative error that still counts as right, 0.1 for 10 %.
    """
    if predicted.dimension != measured.dimension:
        return (
            f"{text_of(predicted)} and {text_of(measured)} measure different things: "
            "the prediction needs another unit."
        )
    guess, truth = predicted.value, measured.value
    if guess == truth:
        return "Exactly right."
    if abs(guess - truth) <= max(tolerance, 1e-9) * abs(truth):
        return "Right, within the tolerance." if tolerance else "Right."
    if guess == 0 or truth == 0 or (guess < 0) != (truth < 0):
        difference = Quantity(abs(guess - truth), measured.dimension)
        return f"Off by {text_of(difference)}."
    ratio = guess / truth
    direction = "too high" if ratio > 1 else "too low"
    if 0.5 < ratio < 2:
        return f"{abs(ratio - 1):.0%} {direction}.{_why(ratio)}"
    factor = ratio if ratio > 1 else 1 / ratio
    return f"{factor:.3g} times {direction}.{_why(ratio)}"


def check_tolerance(tolerance: float) -> None:
    """Raise ValueError unless it is a relative error that can be met."""
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance}: give a relative error, such as 0.1 for 10 %")


def _why(ratio: float) -> str:
    question = usual_mistake(ratio)
    return f" {question}" if question else ""


_WRONG = "#d55e00"
_RIGHT = "#009e73"
MEASURED = "Measured"
_LARGE = ("KB", "MB", "GB", "TB")  # asked in these, bytes are not counted one by one
_LONG = ("min", "h", "days")  # a number in seconds says nothing at these sizes


class PredictBox(WithWidget):
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
        ask(key, question)
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
        earlier = load(key)
        if earlier is not None:
            self._say(f"Earlier you committed to {earlier.text}. Run on, or commit again.", FAINT)

    def commit(self, text: str) -> str:
        """Take the prediction, or say what is wrong with it; returns what the box then says."""
        try:
            quantity = in_unit(text, self._unit)
        except ValueError as error:
            return self._say(f"{error}.", ink(_WRONG))
        said = self._with_unit(text.strip())
        save(self.key, Prediction(said, quantity))
        read_as = text_of(quantity)
        committed = f"Committed: {said}"
        if not _keeps(self._unit) and read_as != said:
            committed += f" (read as {read_as})"
        if self._answer is None:
            return self._say(f"{committed}. Run on, and see.", ink(_RIGHT))
        words = verdict(quantity, self._answer, self._tolerance)
        colour = _RIGHT if judge(self.key, words) else _WRONG
        answer = text_of(self._answer)
        return self._say(f"{committed}. It is {answer}. {words}", ink(colour))

    def _with_unit(self, text: str) -> str:
        """Return the typed text; a bare number gets the unit in which it was read."""
        is_bare = text[-1] in ".0123456789"
        is_share = self._unit == "%" and "/" in text  # a third, not a third of a percent
        return f"{text} {self._unit}" if self._unit and is_bare and not is_share else text

    def _say(self, message: str, colour: str) -> str:
        self._status.value = f'<span style="color: {colour}">{escape(message)}</span>'
        return message

    def __repr__(self) -> str:
        return f"Predict. {self.question}"

    def _static_html(self) -> str:
        asked = f"<b>Predict.</b> {escape(self.question)}<br>"
        return box(asked + run_it("commit to a number."))


def predict(
    key: str,
    question: str = "Your prediction?",
    *,
    answer: float | str | None = None,
    tolerance: float = 0.0,
    unit: str = "",
) -> PredictBox:
    """Show a box in which the reader commits to a number, as the last line of a cell.

    key: under which the prediction is kept, on disk, from session to session.
    answer: where given, the box answers at once; without it, `reveal` does, after the run.
    tolerance: the relative error that still counts as right, 0.1 for 10 %.
    unit: of a number typed without one ("" for counts, or B, MB, GB, KiB, ms, s, ranks, ...).

    Understands 6, 1,000, 2/3, 1e9, 75%, 1.5 MB, 4.9 ms, and says so if it doesn't.
    Raises ValueError for an unknown unit and for an answer that is not a number.
    """
    in_unit(0, unit)
    check_tolerance(tolerance)
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
    """Show the question of `key`, the prediction, and beside it the true number, in words.

    truth: in `unit`. source: the words before it: "Computed" for a calculated number, "torch says"
    for one of torch's constants. varies: it is different in
    every run; marked with ~, as measured seconds are, it is not compared when the notebook is
    tested. Without a prediction the true number is folded: a stored notebook does not give it away.
    """
    check_tolerance(tolerance)
    quantity = in_unit(truth, unit)
    mark = "~" if varies or (source == MEASURED and quantity.dimension == "seconds") else ""
    question = question_of(key)
    answer = f"{source}: {mark}{_true_number(truth, unit)}."
    prediction = load(key)
    if prediction is None:
        return _folded(question, answer)
    words = verdict(prediction.quantity, quantity, tolerance)
    is_right = judge(key, words)
    text = f"You said {prediction.text}. {answer} {words}"
    return _beside(question, text, _RIGHT if is_right else _WRONG)


def _true_number(truth: float, unit: str) -> str:
    """Write a number as a reader sees it: minutes and counts in the question's own unit."""
    if unit == "%" or _keeps(unit):
        return f"{number_text(truth)} {unit}"
    quantity = in_unit(truth, unit)
    return bytes_text(quantity.value) if unit in _LARGE else text_of(quantity)


def _keeps(unit: str) -> bool:
    """Return whether numbers are shown in this unit, and not in the one of their size."""
    return unit in _LONG or bool(counted(unit))


def _folded(question: str, answer: str) -> Shown:
    """Put the true number behind a click."""
    text = f"{answer} (You made no prediction.)"
    summary = escape(question or "The answer") + " (You made no prediction. Click for the answer.)"
    html = f"<details><summary>{summary}</summary>{escape(answer)}</details>"
    return Shown(f"{question}\n{text}" if question else text, box(html))


def _beside(question: str, text: str, colour: str) -> Shown:
    """Put both in a box; only the text where this notebook has not asked."""
    if not question:
        return Shown(text, box(f"<div>{escape(text)}</div>", colour))
    html = f"<b>{escape(question)}</b><br>{escape(text)}"
    return Shown(f"{question}\n{text}", box(f"<div>{html}</div>", colour))
