"""stale_gradients is graded on what labkit's own parameter server makes of the same arrivals."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.stale_answers import wrong_form, wrong_timetable, wrong_updates
from labkit.grade.graders.stale_questions import Known, draw
from labkit.grade.outcome import Finding

_FUNCTIONS = ("asynchronous", "first_k", "timetable")


class StaleGradients(Answers[Known]):
    """The grader of stale_gradients."""

    functions: Sequence[str] = _FUNCTIONS
    answers_are_in: Sequence[str] = ("data_parallel", "grade/graders")
    shown_by_a_pass = (
        "your answers are what a parameter server writes down, gradient by gradient: with "
        "stragglers, with late gradients that are thrown away, and for workers of any pace"
    )

    def questions(self, rng: random.Random) -> list[Question[Known]]:
        """Orders of arrivals and paces of workers."""
        return draw(rng)

    def judge(self, questions: Sequence[Question[Known]], answers: Sequence[Any]) -> Finding | None:
        """Form first, then function by function."""
        pairs = list(zip(questions, answers, strict=True))
        for question, answer in pairs:
            finding = wrong_form(question, answer)
            if finding is not None:
                return finding
        for function in _FUNCTIONS:
            its = [
                (question, [(one, other) for one, other in answer])
                for question, answer in pairs
                if question.function == function
            ]
            wrong = wrong_timetable if function == "timetable" else wrong_updates
            finding = wrong(its)
            if finding is not None:
                return finding
        return None

    def tried(self, questions: Sequence[Question[Known]]) -> str:
        """`14 orders of arrivals, replayed on a parameter server`"""
        return f"{len(questions)} orders of arrivals, replayed on a parameter server"


GRADER = StaleGradients()
