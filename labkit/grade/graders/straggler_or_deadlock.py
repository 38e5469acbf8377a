"""straggler_or_deadlock is graded on jobs that are run, and photographed, for this check."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.straggler_answers import wrong_form, wrong_kind, wrong_rank
from labkit.grade.graders.straggler_cases import Case, draw, run_all
from labkit.grade.graders.straggler_jobs import STORIES
from labkit.grade.outcome import Finding


class StragglerOrDeadlock(Answers[Case]):
    """The grader of straggler_or_deadlock."""

    functions: Sequence[str] = ("diagnose",)
    shown_by_a_pass = (
        "you tell slow ranks, ranks that left and circles of waits apart, over messages and over "
        "two groups, and name the rank to look at, whoever it is"
    )

    def questions(self, rng: random.Random) -> list[Question[Case]]:
        """A job of every kind, in any order."""
        return [
            Question("diagnose", (case.shown,), "a job of 5 ranks", case)
            for case in run_all(draw(rng))
        ]

    def judge(self, questions: Sequence[Question[Case]], answers: Sequence[Any]) -> Finding | None:
        """Form, then the kind, then the rank."""
        cases = [question.known for question in questions]
        for answer, case in zip(answers, cases, strict=True):
            finding = wrong_form(answer, case)
            if finding is not None:
                return finding
        pairs = [(str(kind), int(rank)) for kind, rank in answers]
        return wrong_kind(cases, pairs) or wrong_rank(cases, pairs)

    def tried(self, questions: Sequence[Question[Case]]) -> str:
        """`9 stuck jobs of 5 processes`"""
        return f"{len(STORIES)} stuck jobs of 5 processes"


GRADER = StragglerOrDeadlock()
