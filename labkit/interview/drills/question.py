"""A question with its own numbers, its answer, the steps to it, and known traps.

drill + seed -> Question -> judge(question, "43.8%") -> Ruling: a trap, "relative to ideal time"

Numbers are compared to a number of significant digits:

    7.46 to 2 digits         7.41 to 7.51, both included: half a unit of the second digit, 0.1
    0.0304 to 2 digits       0.0299 to 0.0309
    14 exactly               14, and nothing else

A number is right if it is at most half a unit of the last required digit away from the truth. So
the truth rounded to that digit, or to any later one, is right. This holds in the unit in which the
number was typed, because people round there: 97.04 GiB are 104.2 GB, and both 97 GiB and 100 GB are
right to two digits.

An answer is right, a trap by its name, wrong, or unreadable:

judge(question, "30.4%")     right
judge(question, "7/16")      trapped: relative to ideal time, not to total
judge(question, "30.4 ms")   unreadable, which counts as no answer
judge(question, "0.304")     in percent: read as 0.304%; did you mean 30.4%? No answer, either
"""

import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from labkit.calc.result import Result
from labkit.calc.units import UNITS, Quantity, Typed, counted, read, usual_mistake

_ROUNDING = 1e-9  # error of converting to a unit and back
_TOO_LONG = 1e9  # from here on with a power of ten: 3.14e23


def half_unit(value: float, digits: int) -> float:
    """Return half a unit of the last of these significant digits of `value`."""
    # From the text, because log10(1000) may be 2.9999999999999996.
    exponent = int(f"{abs(value):.15e}".partition("e")[2])
    return 0.5 * 10.0 ** (exponent + 1 - digits)


def agrees(typed: float, truth: float, digits: int | None) -> bool:
    """Return whether `typed` is `truth` to this many digits; None: exactly, for counts."""
    if digits is None:
        return math.isclose(typed, truth, rel_tol=_ROUNDING)
    return abs(typed - truth) <= half_unit(truth, digits) + _ROUNDING * abs(truth)


def may_match_both(one: float, other: float, digits: int | None) -> bool:
    """Return whether one typed number could agree with both."""
    if digits is None:
        return math.isclose(one, other, rel_tol=_ROUNDING)
    reach = half_unit(one, digits) + half_unit(other, digits)
    return abs(one - other) <= reach + _ROUNDING * max(abs(one), abs(other))


def rounded_text(value: float, digits: int | None) -> str:
    """Write a number as a person does: "7.5", "0.030", "1,120". digits: None for a whole number."""
    if digits is None:
        return f"{round(value):,}"
    if abs(value) >= _TOO_LONG:
        return f"{value:.{digits - 1}e}".replace("e+", "e")
    places = digits - 1 - int(f"{abs(value):.{digits - 1}e}".partition("e")[2])
    return f"{round(value, places):,.{max(places, 0)}f}"


@dataclass(frozen=True)
class Trap:
    """A known confusion, and the wrong number that it leads to, in base units."""

    name: str
    value: float | Result
    why: str
    """The confusion, and the correct way: a sentence or two, without the answer's number."""


@dataclass(frozen=True)
class Solution:
    """A drill's answer for its numbers. Steps and traps come from calc like the answer."""

    answer: float | Result
    steps: Sequence[str]
    traps: Sequence[Trap]


class Exhibit(NamedTuple):
    """An exhibit shown with a question: text for a terminal, a page of HTML for a notebook."""

    text: str = ""
    page: str = ""


@dataclass(frozen=True)
class Question:
    """A question. `Drill.question(seed)` makes it; the same seed makes the same one."""

    drill: str
    seed: int
    prompt: str
    givens: Mapping[str, str]
    """Every number that the answer depends on, by name, as in the prompt."""
    answer: Quantity
    unit: str
    """Unit of a bare number: "GB", "ms", "%", "" for a count."""
    unit_size: float
    digits: int | None
    """Significant digits that are needed; None: a count, which must be exact."""
    steps: tuple[str, ...]
    traps: tuple[Trap, ...]
    left_out: tuple[str, ...] = ()
    """Traps whose value, with these numbers, could be taken for the answer or another trap."""
    exhibit: Exhibit = Exhibit()
    """Exhibit below the prompt."""
    proof: Exhibit = Exhibit()
    """Exhibit below the steps, when it is over."""

    @property
    def answer_text(self) -> str:
        """The answer in the question's unit, with one more digit than is asked for: `30.4%`."""
        digits = None if self.digits is None else self.digits + 1
        return self.text_of(self.answer.value, digits)

    def text_of(self, value: float, digits: int | None) -> str:
        """Write a value in base units in the question's unit."""
        space = "" if self.unit in ("%", "") else " "
        return f"{rounded_text(value / self.unit_size, digits)}{space}{self.unit}"


def distinguishable(
    answer: Quantity, traps: Sequence[Trap], digits: int | None
) -> tuple[tuple[Trap, ...], tuple[str, ...]]:
    """Return the traps that no typed number can confuse with another, and the others' names.

    This holds in every unit that may be typed: 99 GB and 101 GB differ to two digits in GiB only.
    """
    kept: list[Trap] = []
    left_out: list[str] = []
    for trap in traps:
        value = float(trap.value)
        others = [answer.value, *(float(each.value) for each in kept)]
        if value > 0 and not any(_confused(value, other, answer, digits) for other in others):
            kept.append(Trap(trap.name, value, trap.why))
        else:
            left_out.append(trap.name)
    return tuple(kept), tuple(left_out)


def _confused(value: float, other: float, answer: Quantity, digits: int | None) -> bool:
    if digits is None:
        return may_match_both(value, other, None)
    return any(
        may_match_both(value / size, other / size, digits) for size in _sizes(answer.dimension)
    )


@cache
def _sizes(dimension: str) -> tuple[float, ...]:
    """Return one size for each set of the dimension's units that differ by a power of ten."""
    sizes = UNITS[dimension.removesuffix("/s")].values()
    return tuple({f"{size:.12e}".partition("e")[0]: float(size) for size in sizes}.values())


_EXAMPLES = {
    "bytes": "31.4 GB, 29.2 GiB or 31400 MB",
    "seconds": "4.93 ms, 1.5 h or 20 days",
    "bytes/s": "50 GB/s or 46.6 GiB/s",
    "FLOP": "3.1e23 or 314 ZFLOP",
    "FLOP/s": "400 TFLOP/s",
    "": "14, 2/3 or 1.5e6",
}
# 7,356 x: thousands by the rule, or 7.356 with a decimal comma.
_ONE_COMMA = re.compile(r"(\d{1,3}),(\d{3})\b[^,]*")
_LARGE_COUNTS = ("thousand", "million", "billion", "trillion")


class Outcome(enum.Enum):
    """The ruling on an answer."""

    RIGHT = "right"
    TRAPPED = "a known trap"
    WRONG = "wrong"
    UNREADABLE = "not to be read"


@dataclass(frozen=True)
class Ruling:
    """The outcome of an answer, and its explanation. It is true if the answer is right."""

    outcome: Outcome
    text: str
    trap: Trap | None = None

    def __bool__(self) -> bool:
        return self.outcome is Outcome.RIGHT


def judge(question: Question, text: str) -> Ruling:
    """Judge a typed answer; never raises for a text.

    A bare number is in the question's unit. A plain count is right too, such as 2.5e9 if billions
    are asked for. For bytes and seconds the ruling says how the number was read.
    """
    try:
        typed = _read(question, text)
    except ValueError as error:
        reason = str(error).partition("; try")[0]
        return Ruling(Outcome.UNREADABLE, f"{reason}. Try {_examples(question)}.")
    found = _ruled(question, typed)
    if found.outcome is not Outcome.WRONG:
        return found
    literal = found
    if not typed.unit and typed.size == question.unit_size:
        literal = _ruled(question, Typed(typed.number, 1.0, question.answer.dimension, ""))
    is_known = literal.outcome is not Outcome.WRONG
    if is_known and question.unit in _LARGE_COUNTS:
        return literal
    doubt = _doubt(question, typed, is_known) or _comma_doubt(question, typed, text)
    return Ruling(Outcome.UNREADABLE, doubt) if doubt else found


def _doubt(question: Question, typed: Typed, is_known: bool) -> str:
    """Say how a wrong bare number was read, if another reading is likely; "" if not.

    is_known: read in base units, the number is the answer or a trap. The text does not say which.
    """
    if typed.unit or typed.size != question.unit_size:
        return ""
    number = typed.number
    if question.unit == "%" and 0 < number < 1 <= question.answer.value / question.unit_size:
        return f"Read as {number:.6g}%; did you mean {100 * number:.6g}%?"
    if is_known and question.answer.dimension:
        return f"A number without a unit is read in {question.unit} here. Write its unit behind it."
    return ""


def _comma_doubt(question: Question, typed: Typed, text: str) -> str:
    """Return a hint that the comma may be a decimal one, if that makes it the answer or a trap."""
    comma = _ONE_COMMA.fullmatch(text.strip())
    if comma is None:
        return ""
    point = f"{comma[1]}.{comma[2]}"
    meant = _ruled(question, typed._replace(number=float(point)))
    if meant.outcome is Outcome.WRONG:
        return ""
    return f"Read as {typed.number:,.0f}. For a decimal write {point}."


def _ruled(question: Question, typed: Typed) -> Ruling:
    if _is(typed, question.answer.value, question.digits):
        return Ruling(Outcome.RIGHT, "Right.")
    for trap in question.traps:
        if _is(typed, float(trap.value), question.digits):
            return Ruling(Outcome.TRAPPED, f"A known trap: {trap.name}. {trap.why}", trap)
    return Ruling(Outcome.WRONG, _how_wrong(question, typed))


def _is(typed: Typed, value: float, digits: int | None) -> bool:
    """Return whether the typed number is this value, in the unit in which it was typed."""
    return agrees(typed.number, value / typed.size, digits)


def _how_wrong(question: Question, typed: Typed) -> str:
    """Say the direction of the error, and the usual reason for a well-known factor."""
    truth = question.answer.value / typed.size
    if question.digits is not None and typed.number == float(f"{truth:.0e}"):
        return f"Rounded too far: {question.digits} significant digits are asked for."
    words = "Too high." if typed.number > truth else "Too low."
    reason = usual_mistake(typed.number / truth) if typed.number > 0 else ""
    return f"{words} {reason}".rstrip()


def _examples(question: Question) -> str:
    if question.unit == "%":
        return "30.4 or 30.4%"
    if question.unit in _LARGE_COUNTS:
        return f"6.7, which is in {question.unit}s here, or 6.7e9"
    return _EXAMPLES[question.answer.dimension]


def _read(question: Question, text: str) -> Typed:
    """Read a typed answer. ValueError as in `read`, and for a noun that the question does not
    count."""
    amount = text.strip().removeprefix("$").removesuffix("dollars").removesuffix("USD").strip()
    asked = question.prompt.lower()
    if amount != text.strip() and "dollar" not in asked:
        raise ValueError(f"{text.strip()!r:.60} is in dollars, and the question asks for none")
    typed = read(amount, question.unit)
    if counted(typed.unit) not in asked:
        raise ValueError(f"{amount!r} counts {typed.unit}, of which the question says nothing")
    return typed
