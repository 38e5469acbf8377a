"""A question with numbers of its own, its answer, the way there, and the wrong turns.

drill + seed -> Question -> judge(question, "43.8%") -> Ruling: a trap, "relative to ideal time"
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from labkit.calc.result import Result
from labkit.calc.units import UNITS, Quantity
from labkit.interview.drills.digits import may_be_confused, rounded_text


@dataclass(frozen=True)
class Trap:
    """A known confusion, and the wrong number that it leads to, in base units."""

    name: str
    value: float | Result
    why: str
    """What was confused, and what is right: a sentence or two, without the answer's number."""


@dataclass(frozen=True)
class Solution:
    """What a drill makes of its numbers. Steps and traps come from calc as the answer does."""

    answer: float | Result
    steps: Sequence[str]
    traps: Sequence[Trap]


class Exhibit(NamedTuple):
    """What is shown with a question: as text in a terminal, as a page of HTML in a notebook."""

    text: str = ""
    page: str = ""


@dataclass(frozen=True)
class Question:
    """One question. `Drill.question(seed)` makes it; the same seed makes the same one."""

    drill: str
    seed: int
    prompt: str
    givens: Mapping[str, str]
    """Every number that the answer depends on, by name, as the prompt says it."""
    answer: Quantity
    unit: str
    """In which a bare number is read: "GB", "ms", "%", "" for a count."""
    unit_size: float
    digits: int | None
    """Significant digits that are needed; None: a count, which must be exact."""
    steps: tuple[str, ...]
    traps: tuple[Trap, ...]
    left_out: tuple[str, ...] = ()
    """Traps whose value, with these numbers, could be taken for the answer or another trap."""
    exhibit: Exhibit = Exhibit()
    """Below the prompt."""
    proof: Exhibit = Exhibit()
    """Below the steps, when it is over."""

    @property
    def answer_text(self) -> str:
        """In the question's unit, with one digit more than is asked for: `30.4%`."""
        digits = None if self.digits is None else self.digits + 1
        return self.text_of(self.answer.value, digits)

    def text_of(self, value: float, digits: int | None) -> str:
        """A value in base units as a person writes it in the question's unit."""
        space = "" if self.unit in ("%", "") else " "
        return f"{rounded_text(value / self.unit_size, digits)}{space}{self.unit}"


def told_apart(
    answer: Quantity, traps: Sequence[Trap], digits: int | None
) -> tuple[tuple[Trap, ...], tuple[str, ...]]:
    """The traps that no typed number can share with the answer or an earlier trap; others' names.

    In every unit that may be typed: 99 GB and 101 GB differ to two digits in GiB only.
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
        return may_be_confused(value, other, None)
    return any(
        may_be_confused(value / size, other / size, digits) for size in _sizes(answer.dimension)
    )


@cache
def _sizes(dimension: str) -> tuple[float, ...]:
    """Of the units of a dimension, one of those that differ by a power of ten: equal digits."""
    sizes = UNITS[dimension.removesuffix("/s")].values()
    return tuple({f"{size:.12e}".partition("e")[0]: float(size) for size in sizes}.values())
