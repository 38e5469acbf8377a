"""What a reader committed to, and how far off it was, in words."""

import math
from typing import Any, NamedTuple

from labkit import progress
from labkit.calc.typed import text_of, usual_mistake
from labkit.calc.units import Quantity
from labkit.progress import graded as practised

_KIND = "prediction"
# Predictions of this process, for a learner whose disk is full or read-only.
_unsaved: dict[str, "Prediction"] = {}
# What this process has asked, for the answer to repeat.
_questions: dict[str, str] = {}


class Prediction(NamedTuple):
    """A number that was committed to: as typed, and in base units."""

    text: str
    quantity: Quantity


def ask(key: str, question: str) -> None:
    """Remember the question of a key, for as long as this process."""
    _questions[key] = question


def question_of(key: str) -> str:
    """The question of a key; empty where this process has not asked it."""
    return _questions.get(key, "")


def save(key: str, prediction: Prediction) -> None:
    """Remember a prediction, on disk where that is possible; the latest of a key counts."""
    value, dimension = prediction.quantity
    _unsaved.pop(key, None)
    progress.record(_KIND, key, text=prediction.text, value=value, dimension=dimension)
    if load(key) != prediction:  # `record` never raises: it warns, and this session goes on
        _unsaved[key] = prediction


def judge(key: str, words: str) -> bool:
    """Whether a verdict says that the prediction was right; which counts as practice."""
    right = words.startswith(("Exactly", "Right"))
    if key not in _unsaved:
        practised.record_judged(key, right=right)
    return right


def load(key: str) -> Prediction | None:
    """The latest prediction of a key, from any session; None if there is none."""
    if key in _unsaved:
        return _unsaved[key]
    events = progress.events(key, _KIND)
    if not events:
        return None
    detail: dict[str, Any] = events[-1].detail
    return Prediction(detail["text"], Quantity(detail["value"], detail["dimension"]))


def verdict(predicted: Quantity, measured: Quantity, tolerance: float = 0.0) -> str:
    """How a prediction compares: one sentence.

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
    """Raises ValueError unless it is a relative error that can be met."""
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance}: give a relative error, such as 0.1 for 10 %")


def _why(ratio: float) -> str:
    question = usual_mistake(ratio)
    return f" {question}" if question else ""
