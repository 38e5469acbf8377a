"""Answers about staleness: their form, and the idea behind a wrong one."""

from collections.abc import Callable, Sequence
from typing import Any

from labkit.grade.answers import Question
from labkit.grade.graders.stale_questions import Known, rounds_of
from labkit.grade.graders.stale_theories import ASYNCHRONOUS, FIRST_K, Theory
from labkit.grade.outcome import Finding, Outcome

Pairs = list[tuple[int, int]]
Answered = tuple[Question[Known], Pairs]
_CONTRACTS = {"timetable": "(worker, staleness)"}
_DEFAULT_CONTRACT = "(staleness, version)"


def wrong_form(question: Question[Known], answer: Any) -> Finding | None:
    """An answer that is no list of a pair of whole numbers for each arrival."""
    what = _CONTRACTS.get(question.function, _DEFAULT_CONTRACT)
    wanted = len(question.known.arrivals)
    if not isinstance(answer, list | tuple) or not all(map(_is_pair, answer)):
        name, shown = "returns something else", repr(answer)
        got = shown if len(shown) < 80 else f"{shown[:80]}..."
    elif len(answer) != wanted:
        name, got = "not one pair for each gradient", f"{len(answer)} pairs"
    else:
        return None
    return Finding(
        Outcome.WRONG,
        name,
        f"{question.function} returns {got}; the contract is a list of {wanted} pairs {what}, "
        "of whole numbers",
        first_seen=question.label,
        hint=3,
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and {*map(type, value)} == {int}


def wrong_updates(answered: Sequence[Answered]) -> Finding | None:
    """What is wrong with the answers of `asynchronous`, or of `first_k`."""
    wrong = [(q, answer) for q, answer in answered if answer != q.known.updates]
    if not wrong:
        return None
    theories = FIRST_K if wrong[0][0].known.k else ASYNCHRONOUS
    recognised = _by_theory(answered, theories, lambda updates, known: updates)
    question, answer = wrong[0]
    return _finding(recognised, question, answer, question.known.updates, _DEFAULT_CONTRACT)


def wrong_timetable(answered: Sequence[Answered]) -> Finding | None:
    """What is wrong with the answers of `timetable`: who comes, and then how stale."""
    wrong = [(q, answer) for q, answer in answered if answer != _timetable(q.known)]
    if not wrong:
        return None
    orders = [[worker for worker, _ in answer] for _, answer in answered]
    recognised = _wrong_order([q for q, _ in answered], orders)
    if recognised is None:
        recognised = _by_theory(
            answered,
            ASYNCHRONOUS,
            lambda updates, known: [
                (worker, age) for worker, (age, _) in zip(known.arrivals, updates, strict=True)
            ],
        )
    question, answer = wrong[0]
    return _finding(
        recognised, question, answer, _timetable(question.known), _CONTRACTS["timetable"]
    )


def _timetable(known: Known) -> Pairs:
    return [(worker, age) for worker, (age, _) in zip(known.arrivals, known.updates, strict=True)]


_Recognised = tuple[str, str, int]


def _wrong_order(
    questions: Sequence[Question[Known]], orders: Sequence[Sequence[int]]
) -> _Recognised | None:
    if all(order == q.known.arrivals for q, order in zip(questions, orders, strict=True)):
        return None
    if all(order == rounds_of(*q.arguments) for q, order in zip(questions, orders, strict=True)):
        return (
            "lets the workers take turns",
            "every worker comes once in each round, as if all waited for the slowest. Nobody waits "
            "here: a worker's gradients come at 1, 2, 3, ... times its seconds",
            1,
        )
    return (
        "another order of arrivals",
        "a worker's gradients come at 1, 2, 3, ... times its seconds, whatever the others do; the "
        "arrivals are all workers' times in ascending order",
        1,
    )


def _by_theory(
    answered: Sequence[Answered],
    theories: Sequence[Theory],
    as_answer: Callable[[Pairs, Known], Pairs],
) -> _Recognised:
    for theory in theories:
        if all(
            answer == as_answer(theory.updates(q.known.arrivals, q.known.k), q.known)
            for q, answer in answered
        ):
            return (theory.name, theory.explanation, theory.hint)
    return (
        "not what the server counts",
        "go through the arrivals one by one, and write down the version that each worker has",
        2,
    )


def _finding(
    recognised: _Recognised, question: Question[Known], got: Pairs, wanted: Pairs, what: str
) -> Finding:
    name, explanation, hint = recognised
    at = next(i for i, pair in enumerate(got) if pair != wanted[i])
    seen = (
        f"{question.function}, {question.label}: gradient {at + 1}, of worker "
        f"{question.known.arrivals[at]}: {what} = {got[at]}, expected {wanted[at]}"
    )
    return Finding(
        Outcome.WRONG, name, explanation, seen, hint, details=_table(question.known, got, wanted)
    )


def _table(known: Known, got: Pairs, wanted: Pairs) -> str:
    lines = ["gradient  of worker       got  expected"]
    rows = zip(known.arrivals, got, wanted, strict=True)
    for number, (worker, mine, right) in enumerate(rows, start=1):
        lines.append(f"{number:>8} {worker:>10} {mine!s:>9} {right!s:>9}")
    return "\n".join(lines)
