"""The form of answers about links: a pair of numbers, a number, or the name of an algorithm."""

from typing import Any

from labkit.grade.answers import Question
from labkit.grade.graders.alpha_beta_costs import ALGORITHMS
from labkit.grade.outcome import Finding, Outcome

_CONTRACTS = {
    "fit": "a pair of numbers, (alpha, beta)",
    "predict": "a number of seconds",
    "choose": "'ring' or 'tree'",
}


def wrong_form(question: Question[Any], answer: Any) -> Finding | None:
    """An answer that is not what the contract says."""
    if question.function == "fit":
        is_right = (
            isinstance(answer, tuple | list) and len(answer) == 2 and all(map(_is_number, answer))
        )
    elif question.function == "predict":
        is_right = _is_number(answer)
    else:
        is_right = answer in ALGORITHMS
    if is_right:
        return None
    return Finding(
        Outcome.WRONG,
        "returns something else",
        f"{question.function} returns {answer!r}; the contract is {_CONTRACTS[question.function]}",
        first_seen=question.label,
        hint=3,
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
