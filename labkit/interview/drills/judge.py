"""What is said to an answer: right, a trap by its name, wrong, or not to be read.

judge(question, "30.4%")     right
judge(question, "7/16")      trapped: relative to ideal time, not to total
judge(question, "30.4 ms")   unreadable, which counts as no answer
"""

import enum
from dataclasses import dataclass

from labkit.calc.typed import read, usual_mistake
from labkit.calc.units import Typed
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
    """Rule on a typed answer. A bare number is in the question's unit; never raises for a text."""
    try:
        typed = read(_without_dollars(text), question.unit)
    except ValueError as error:
        reason = str(error).partition("; try")[0]
        return Ruling(Outcome.UNREADABLE, f"{reason}. Try {_examples(question)}.")
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
    if question.unit in ("million", "billion"):
        return f"6.7, which is in {question.unit}s here, or 6.7e9"
    return _EXAMPLES[question.answer.dimension]


def _without_dollars(text: str) -> str:
    """The question has said that it is about money: "$4.1 million" and "4.1M dollars"."""
    return text.strip().removeprefix("$").removesuffix("dollars").removesuffix("USD").strip()
