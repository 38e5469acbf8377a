"""Evidence: does an expression give the number that a text says?

proved = prove("4.93 ms", "calc.collective('all_reduce', 'ring', 8, 1e9).seconds(5e-6, 1/360e9)")
proved.holds, proved.value        True, 0.0049305...

A number holds if the value, in its unit, rounds to it: "4.93 ms" is 4.925 to 4.935. Zeros at the
end count as digits: "400 GB" is 399.5 to 400.5. Who rounds more says so: "about 400 GB", "nearly",
"almost", "under" (the value is at most 5% less), "over", "more than" (at most 5% more). A word is a
number, too: "three", "half" (within 4%), "twice". For several numbers the proof gives as many:
"4, 3, 2 and 1". For no number it gives that text: "ring"; True is not enough.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from labkit.calc.result import Result
from labkit.interview import proof as proofs
from labkit.interview.said import Number, said_numbers

_ABOUT = re.compile(
    r"\b(?:about|around|roughly|some|nearly|almost|under|over|(?:more|less) than)\b"
)
_BELOW, _ABOVE = ("nearly", "almost", "under", "less than"), ("over", "more than")
_ABOUT_SHARE = 0.05
_ROUNDING = 1e-9  # of the number: floating point, and a 5 that was meant to go up


@dataclass(frozen=True, slots=True)
class Proved:
    """What became of one piece of evidence."""

    says: str
    proof: str
    value: Any
    """What the expression gives, in base units; None if it gives nothing."""
    holds: bool
    reason: str = ""
    """Why it does not hold, and what would."""


def prove(says: str, proof: str) -> Proved:
    """Evaluate `proof` and compare it with `says`. Raises nothing: the reason is in the answer."""
    try:
        value = proofs.value(proof)
    except proofs.BadProof as error:
        return Proved(says, proof, None, False, str(error))
    reason = _difference(says, value, is_product=proofs.multiplies(proof))
    return Proved(says, proof, value, not reason, reason)


def _difference(says: str, value: Any, is_product: bool) -> str:
    """Why `value` is not what `says` says; "" if it is.

    is_product: calc's results keep their dimension when a plain number is multiplied in, so 2 bytes
    for each of N parameters are "parameters" to it: then nothing follows from the dimension.
    """
    said = said_numbers(says)
    if isinstance(value, str):
        same = value.casefold() == says.casefold()
        return "" if same else f"the text says {says!r}, the proof gives {value!r}"
    if isinstance(value, bool):
        return f"{value} proves no {says!r}; let the proof give the number or the words themselves"
    values = value if isinstance(value, Sequence) else [value]
    if not said:
        return f"{says!r} has no number, the proof gives {_shown(value)}"
    if len(values) != len(said):
        return (
            f"{says!r} has {len(said)} numbers, the proof gives {len(values)}; "
            "say only the number that is proved"
        )
    for number, each in zip(said, values, strict=True):
        if isinstance(each, bool) or not isinstance(each, Real | Result):
            return f"the proof gives {each!r:.80}, which is no number"
        dimension = each.dimension if isinstance(each, Result) and not is_product else ""
        if dimension and number.dimension and dimension != number.dimension:
            return f"{number.text!r} is {number.dimension}, the proof gives {dimension}"
        if reason := _miss(says, number, each):
            return reason
    return ""


def _miss(says: str, number: Number, value: Any) -> str:
    found = float(value) / number.scale
    if not math.isfinite(found):
        return f"the proof gives {found}"
    low, high = _range(says[: number.start], number)
    if low <= found <= high:
        return ""
    unit = number.text.lstrip("$0123456789.,e+-")
    return f"the text says {number.text}, the proof gives {found:.6g}{unit} ({_shown(value)})"


def _range(before: str, number: Number) -> tuple[float, float]:
    """What rounds to the number, in its unit; `before` are the words in front of it."""
    half = number.step / 2 + _ROUNDING * abs(number.value)
    low, high = number.value - half, number.value + half
    words = _ABOUT.findall(before.lower())
    if not words:
        return low, high
    slack = max(_ABOUT_SHARE * abs(number.value), half)
    if words[-1] in _BELOW:
        return number.value - slack, number.value
    if words[-1] in _ABOVE:
        return number.value, number.value + slack
    return number.value - slack, number.value + slack


def _shown(value: Any) -> str:
    return f"{value} = {float(value):.6g}" if isinstance(value, Result) else f"{value!r:.80}"
