"""Exercises of calculation: answers are right, or the mistake is named that explains all of them.

A theory is a mistake as a formula: the wrong number that it leads to, for each question. The first
one that gives what came back, question by question, is the diagnosis.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from labkit.grade.answers import Answers, Question
from labkit.grade.outcome import Finding, Outcome

Known = TypeVar("Known")
# Between a mistake and its theory, which may add up floats in another order.
_THEORY_RTOL = 1e-14


@dataclass(frozen=True)
class Theory(Generic[Known]):
    """A mistake, and the answer by it."""

    name: str
    explanation: str
    answer: Callable[[Known], Any]
    hint: int = 2


class ByTheory(Answers[Known]):
    """A grader of functions that calculate."""

    rights: Mapping[str, Callable[[Known], Any]]
    """By function: the answer that is right."""
    theories: Mapping[str, Sequence[Theory[Known]]]
    """By function, in the order in which they are tried."""
    rtol: float = 0.0
    """Between numbers, as a share of the right one; 0 where all is counted in whole numbers."""

    def wrong_form(self, function: str, answer: Any) -> str:
        """What should have come back, where this cannot be it by its form; else empty."""
        raise NotImplementedError

    def unexplained(self, function: str, pairs: Sequence[tuple[Known, Any]]) -> tuple[str, str]:
        """Name and explanation of what no theory explains, from all questions and answers."""
        raise NotImplementedError

    def judge(self, questions: Sequence[Question[Known]], answers: Sequence[Any]) -> Finding | None:
        """Form first, then function by function."""
        pairs = list(zip(questions, answers, strict=True))
        for question, answer in pairs:
            if wanted := self.wrong_form(question.function, answer):
                return Finding(
                    Outcome.WRONG,
                    "returns something else",
                    f"{question.function} returns {str(answer)[:80]}; the contract is {wanted}",
                    first_seen=question.label,
                    hint=3,
                )
        for function in self.functions:
            finding = self._wrong_answers([pair for pair in pairs if pair[0].function == function])
            if finding is not None:
                return finding
        return None

    def is_right(self, question: Question[Known], answer: Any) -> bool:
        """Whether this is the answer, but for rounding in floating point."""
        return agree(answer, self.rights[question.function](question.known), self.rtol)

    def _wrong_answers(self, pairs: Sequence[tuple[Question[Known], Any]]) -> Finding | None:
        """The first wrong answer of one function, and what explains all of its answers."""
        wrong = [pair for pair in pairs if not self.is_right(*pair)]
        if not wrong:
            return None
        question, answer = wrong[0]
        name, explanation, hint = self._recognised(
            question.function, [(question.known, answer) for question, answer in pairs]
        )
        expected = self.rights[question.function](question.known)
        return Finding(
            Outcome.WRONG,
            name,
            explanation,
            f"{question.function}, {question.label}: got {shown(answer)}, expected "
            f"{shown(expected)}",
            hint,
        )

    def _recognised(
        self, function: str, pairs: Sequence[tuple[Known, Any]]
    ) -> tuple[str, str, int]:
        rtol = max(self.rtol, _THEORY_RTOL)
        for theory in self.theories[function]:
            if all(agree(answer, theory.answer(known), rtol) for known, answer in pairs):
                return theory.name, theory.explanation, theory.hint
        return (*self.unexplained(function, pairs), 2)


def agree(got: Any, wanted: Any, rtol: float = 0.0) -> bool:
    """Whether two pieces of plain data are the same; 2 and 2.0 are, a list and a tuple are."""
    if isinstance(wanted, dict):
        return (
            isinstance(got, dict)
            and got.keys() == wanted.keys()
            and all(agree(got[key], wanted[key], rtol) for key in wanted)
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(got, list | tuple)
            and len(got) == len(wanted)
            and all(agree(one, other, rtol) for one, other in zip(got, wanted, strict=True))
        )
    if is_number(wanted) and is_number(got):
        return bool(abs(got - wanted) <= rtol * abs(wanted))
    return type(got) is type(wanted) and bool(got == wanted)


def is_number(value: Any) -> bool:
    """Python's own int or float; a boolean counts nothing."""
    return type(value) in (int, float)


def shown(value: Any) -> str:
    """As a person reads it: 1,048,576 and not 1048576."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(shown, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if type(value) is float:
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.10g}"
    return f"{value:,}" if type(value) is int else repr(value)
