"""What a reader committed to, and how far off it was, in words."""

import math
from typing import Any, NamedTuple

from labkit import progress
from labkit.calc.units import Quantity, exact_bytes_text, parse_quantity, quantity_text
from labkit.progress import graded as practised

_KIND = "prediction"
# Predictions of this process, for a learner whose disk is full or read-only.
_unsaved: dict[str, "Prediction"] = {}


class Prediction(NamedTuple):
    """A number that was committed to: as typed, and in base units."""

    text: str
    quantity: Quantity


def in_unit(number: float | str, unit: str) -> Quantity:
    """A number as a Quantity: a bare one is in `unit` ("" for counts), a text may bring its own.

    in_unit(4.9, "ms") == in_unit("4900 us", "ms"). Raises ValueError for a text that is no number,
    for one whose unit measures something else, and for a number that is infinite, not a number, or
    below 0 where bytes or seconds are asked for.
    """
    scale, dimension = parse_quantity(f"1 {unit}")
    if not isinstance(number, str):
        if not math.isfinite(number):
            raise ValueError(
                f"{number} is no measurement: pass a finite number, such as "
                "result.traffic[0].sent_bytes"
            )
        if number < 0 and dimension in ("bytes", "seconds"):
            raise ValueError(f"{number}: {dimension} cannot be negative; pass 0 or more")
        return Quantity(number * scale, dimension)
    quantity = parse_quantity(number)
    if quantity.value < 0 and dimension in ("bytes", "seconds"):
        raise ValueError(f"{number.strip()!r}: {dimension} cannot be negative")
    if "%" in number and dimension:
        raise ValueError(f"{number.strip()!r} of what? The question is in {dimension}")
    if quantity.dimension == dimension:
        return quantity
    if quantity.dimension == "":
        return Quantity(quantity.value * scale, dimension)
    asked = (
        f"the question is in {dimension}" if dimension else "the question asks for a bare number"
    )
    raise ValueError(f"{number.strip()!r} is in {quantity.dimension}; {asked}")


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
        return f"{abs(ratio - 1):.0%} {direction}.{_hint(ratio)}"
    factor = ratio if ratio > 1 else 1 / ratio
    return f"{factor:.3g} times {direction}.{_hint(ratio)}"


def check_tolerance(tolerance: float) -> None:
    """Raises ValueError unless it is a relative error that can be met."""
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance}: give a relative error, such as 0.1 for 10 %")


def text_of(quantity: Quantity) -> str:
    """A quantity as a reader sees it; bytes exactly, as far as that is readable."""
    if quantity.dimension == "bytes":
        return exact_bytes_text(quantity.value)
    return quantity_text(quantity.value, quantity.dimension)


def _hint(ratio: float) -> str:
    """The usual reason for a prediction that is off by a well-known factor, as a question."""
    factor = ratio if ratio > 1 else 1 / ratio
    usual = {
        2.0: "A factor of two: one phase or both, one direction or both?",
        8.0: "A factor of eight: bits or bytes?",
        1000.0: "A factor of a thousand: which prefix?",
        1.024: "KB or KiB?",
        1.024**2: "MB or MiB?",
        1.024**3: "GB or GiB?",
    }
    for known, question in usual.items():
        if abs(factor / known - 1) < 1e-3:
            return f" {question}"
    return ""
