"""linear_scaling is graded on rates and steps of setups that are drawn for each check."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.scaling_questions import Known, draw
from labkit.grade.graders.scaling_rates import RATES
from labkit.grade.graders.scaling_steps import BATCHES, EPOCHS, TOTALS, Theory
from labkit.grade.outcome import Finding, Outcome

_THEORIES = {
    "global_batch": BATCHES,
    "learning_rate": RATES,
    "steps_per_epoch": EPOCHS,
    "total_steps": TOTALS,
}
_OTHERS = {"learning_rate": "another rate", "global_batch": "another batch"}
_RTOL, _ATOL = 1e-9, 1e-15  # a formula in floating point, in any order
Pair = tuple[Question[Known], float]


class LinearScaling(Answers[Known]):
    """The grader of linear_scaling."""

    functions: Sequence[str] = tuple(_THEORIES)
    answers_are_in: Sequence[str] = ("large_batch", "grade/graders")
    shown_by_a_pass = (
        "you scale by the samples of a step, ranks and accumulation included, warm up from start "
        "to the full rate in exactly as many steps as asked, and see every sample"
    )

    def questions(self, rng: random.Random) -> list[Question[Known]]:
        """Fresh setups."""
        return draw(rng)

    def judge(self, questions: Sequence[Question[Known]], answers: Sequence[Any]) -> Finding | None:
        """Form first, then function by function."""
        pairs = list(zip(questions, answers, strict=True))
        for question, answer in pairs:
            finding = wrong_form(question, answer)
            if finding is not None:
                return finding
        for function in _THEORIES:
            finding = wrong_numbers([pair for pair in pairs if pair[0].function == function])
            if finding is not None:
                return finding
        return None

    def tried(self, questions: Sequence[Question[Known]]) -> str:
        """`70 questions about 7 setups`"""
        num_setups = len({each.known.setup for each in questions})
        return f"{len(questions)} questions about {num_setups} setups"


def wrong_form(question: Question[Known], answer: Any) -> Finding | None:
    """An answer that is no number, or no whole one."""
    is_rate = question.function == "learning_rate"
    if type(answer) is int or (is_rate and type(answer) is float):
        return None
    what = "a number" if is_rate else "a whole number, as // makes it of two whole numbers"
    return Finding(
        Outcome.WRONG,
        "returns something else",
        f"{question.function} returns {answer!r}; the contract is {what}",
        first_seen=question.label,
        hint=3,
    )


def wrong_numbers(pairs: Sequence[Pair]) -> Finding | None:
    """The first wrong answer of one function, and the mistake that explains all of its answers."""
    wrong = [pair for pair in pairs if not _is_right(*pair)]
    if not wrong:
        return None
    question, answer = wrong[0]
    theory = _theory(question.function, pairs)
    return Finding(
        Outcome.WRONG,
        theory.name,
        theory.explanation,
        f"{question.function}, {question.label}: got {_shown(answer)}, expected "
        f"{_shown(question.known.right)} (a batch of {question.known.setup.batch:,})",
        theory.hint,
    )


def _theory(function: str, pairs: Sequence[Pair]) -> Theory:
    for theory in _THEORIES[function]:
        if all(_agree(answer, theory.answer(question.known)) for question, answer in pairs):
            return theory
    return Theory(
        _OTHERS.get(function, "another number of steps"),
        "write down the global batch first: the samples whose gradients make one step",
        lambda known: known.right,
    )


def _is_right(question: Question[Known], answer: float) -> bool:
    return _agree(answer, question.known.right)


def _agree(got: float, wanted: float) -> bool:
    if isinstance(got, int) and isinstance(wanted, int):
        return got == wanted
    return abs(got - wanted) <= _ATOL + _RTOL * abs(wanted)


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.9g}"


GRADER = LinearScaling()
