"""What is said to an answer: right, a trap by its name, wrong, or not to be read.

judge(question, "30.4%")     right
judge(question, "7/16")      trapped: relative to ideal time, not to total
judge(question, "30.4 ms")   unreadable, which counts as no answer
judge(question, "0.304")     in percent: read as 0.304%; did you mean 30.4%? No answer, either
"""

import enum
import re
from dataclasses import dataclass

from labkit.calc.units import Typed, counted, read, usual_mistake
from labkit.interview.drills.digits import agrees
from labkit.interview.drills.question import Question, Trap

_EXAMPLES = {
    "bytes": "31.4 GB, 29.2 GiB or 31400 MB",
    "seconds": "4.93 ms, 1.5 h or 20 days",
    "bytes/s": "50 GB/s or 46.6 GiB/s",
    "FLOP": "3.1e23 or 314 ZFLOP",
    "FLOP/s": "400 TFLOP/s",
    "": "14, 2/3 or 1.5e6",
}
# 7,356 x: thousands by the rule, and what whoever writes a decimal comma means by 7.356.
_ONE_COMMA = re.compile(r"(\d{1,3}),(\d{3})\b[^,]*")
_LARGE_COUNTS = ("thousand", "million", "billion", "trillion")


class Outcome(enum.Enum):
    """How an answer was."""

    RIGHT = "right"
    TRAPPED = "a known trap"
    WRONG = "wrong"
    UNREADABLE = "not to be read"


@dataclass(frozen=True)
class Ruling:
    """The outcome, and what to say. True where the answer is right."""

    outcome: Outcome
    text: str
    trap: Trap | None = None

    def __bool__(self) -> bool:
        return self.outcome is Outcome.RIGHT


def judge(question: Question, text: str) -> Ruling:
    """Rule on a typed answer; never raises for a text.

    A bare number is in the question's unit. A count that is right as it stands is right, too:
    2.5e9 where billions are asked for. Of bytes and seconds it is said how the number was read.
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
    """How a wrong bare number was read, where something else may be meant; "" if not.

    is_known: in base units it is the answer or a trap. Which, the next answer shows.
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
    """The same where a decimal comma was meant: with it, this is the answer or a trap."""
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
    """Whether this was typed for a value, in the unit in which it was typed."""
    return agrees(typed.number, value / typed.size, digits)


def _how_wrong(question: Question, typed: Typed) -> str:
    """The direction, and the usual reason for a well-known factor: not the answer."""
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
    """What was typed. ValueError as of `read`, and where something is counted that is not asked."""
    amount = text.strip().removeprefix("$").removesuffix("dollars").removesuffix("USD").strip()
    asked = question.prompt.lower()
    if amount != text.strip() and "dollar" not in asked:
        raise ValueError(f"{text.strip()!r:.60} is in dollars, and the question asks for none")
    typed = read(amount, question.unit)
    if counted(typed.unit) not in asked:
        raise ValueError(f"{amount!r} counts {typed.unit}, of which the question says nothing")
    return typed
