"""send_recv_order is graded on 1F1B's messages: complete, never in a circle, and on real ranks.

Whose order it is does not matter: exchanges by the parity of the rank, receives first on one side,
or sends and receives posted together.
"""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.order_actions import CONTRACT, NoAction, row_of
from labkit.grade.graders.order_questions import Pipe, draw, questions_of
from labkit.grade.graders.order_runs import wrong_on_ranks
from labkit.grade.graders.order_theories import RULES, Performed, broken_rule, standstill
from labkit.grade.outcome import Finding, Outcome
from labkit.pipeline.messages import MessageError, Row, require_actions
from labkit.pipeline.rendezvous import require_end

_MOST_RANKS = 4


class SendRecvOrder(Answers[Pipe]):
    """The grader of send_recv_order."""

    functions: Sequence[str] = ("send_recv_order",)
    answers_are_in: Sequence[str] = ("pipeline", "grade/graders")
    arguments_stay = True
    takes_iterators = True
    shown_by_a_pass = (
        "with messages that block, 1F1B comes to its end on up to 8 ranks, with fewer microbatches "
        "than ranks, too; and on real ranks what arrives is what one process computes"
    )

    def questions(self, rng: random.Random) -> list[Question[Pipe]]:
        """Fresh numbers of ranks and microbatches."""
        return questions_of(draw(rng))

    def judge(self, questions: Sequence[Question[Pipe]], answers: Sequence[Any]) -> Finding | None:
        """Form; then rules, pipeline by pipeline; then whether all end; then real ranks."""
        by_pipe: dict[Pipe, list[Row]] = {}
        for question, answer in zip(questions, answers, strict=True):
            pipe, rank = question.known, question.arguments[0]
            try:
                by_pipe.setdefault(pipe, []).append(row_of(answer, rank, pipe.p))
            except NoAction as why:
                return Finding(
                    Outcome.WRONG,
                    "returns something else",
                    f"{why}; the contract is {CONTRACT}",
                    first_seen=f"{pipe}: rank {rank}",
                    hint=3,
                )
        every = [_performed(pipe, tuple(rows)) for pipe, rows in by_pipe.items()]
        return _broken(every) or _stuck(every) or _on_ranks(every)

    def tried(self, questions: Sequence[Question[Pipe]]) -> str:
        """`13 pipelines`"""
        return f"{len({each.known for each in questions})} pipelines"


def _performed(pipe: Pipe, rows: tuple[Row, ...]) -> Performed:
    try:
        require_actions(pipe.schedule, rows)
        require_end(rows)
    except MessageError as error:
        return Performed(pipe, rows, error)
    return Performed(pipe, rows, None)


def _broken(every: Sequence[Performed]) -> Finding | None:
    """The first pipeline whose actions are not the schedule's."""
    for each in every:
        if each.error is not None and each.error.rule in RULES:
            name, explanation, hint = broken_rule(each)
            return _finding(name, explanation, hint, each)
    return None


def _stuck(every: Sequence[Performed]) -> Finding | None:
    """The first that stands still, explained by all of them."""
    for each in every:
        if each.error is not None:
            return _finding(*standstill(every), each)
    return None


def _finding(name: str, explanation: str, hint: int, performed: Performed) -> Finding:
    assert performed.error is not None
    reason, _, rows = str(performed.error).partition("\n")
    seen = f"{performed.pipe}: {reason}"
    details = f"{rows}\n> sends, < receives"
    return Finding(Outcome.WRONG, name, explanation, seen, hint, details=details)


def _on_ranks(every: Sequence[Performed]) -> Finding | None:
    """Real runs: the first pipeline of each size, up to what two cores do well."""
    first = {each.pipe.p: each for each in reversed(every) if 1 < each.pipe.p <= _MOST_RANKS}
    for size in sorted(first):
        finding = wrong_on_ranks(first[size].pipe, first[size].rows)
        if finding is not None:
            return finding
    return None


GRADER = SendRecvOrder()
