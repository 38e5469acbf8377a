"""alpha_beta is graded on exact times, on times with noise, and on times measured for the check.

The measured ones come last, and only where all else is right: a second of real all-reduces over
paced links (alpha_beta_links.py). `fit` sees some of them; the others are held back.
"""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question, ask_patiently
from labkit.grade.graders.alpha_beta_fits import does_not_predict, wrong_fit
from labkit.grade.graders.alpha_beta_forms import wrong_form
from labkit.grade.graders.alpha_beta_links import Measured
from labkit.grade.graders.alpha_beta_questions import Asked, Known, draw
from labkit.grade.graders.alpha_beta_times import wrong_choices, wrong_times
from labkit.grade.outcome import Finding, Graded
from labkit.grade.submission import Submission


class AlphaBeta(Answers[Known]):
    """The grader of alpha_beta."""

    functions: Sequence[str] = ("fit", "predict", "choose")
    answers_are_in: Sequence[str] = ("calc", "measure", "grade/graders")
    shown_by_a_pass = (
        "you count the messages and bytes of a ring and of a tree, fit alpha and beta to times "
        "with noise, and the link that you fitted to a ring predicts what was measured at other "
        "sizes, and of a tree"
    )

    def questions(self, rng: random.Random) -> list[Question[Known]]:
        """Times, choices, and points to fit: all but those that are measured."""
        return draw(rng)

    def judge(self, questions: Sequence[Question[Known]], answers: Sequence[Any]) -> Finding | None:
        """Form, times, choices, then fits, the exact ones first."""
        pairs = list(zip(questions, answers, strict=True))
        for question, answer in pairs:
            finding = wrong_form(question, answer)
            if finding is not None:
                return finding
        for function, wrong in (("predict", wrong_times), ("choose", wrong_choices)):
            its = [(q.known, a) for q, a in pairs if q.function == function]
            asked = [known for known, _ in its if isinstance(known, Asked)]
            finding = wrong(asked, [answer for _, answer in its])
            if finding is not None:
                return finding
        for question, answer in pairs:
            if not isinstance(question.known, Asked):
                finding = wrong_fit(question.known, question.label, (answer[0], answer[1]))
                if finding is not None:
                    return finding
        return None

    def grade(self, code: Submission, seed: int, timeout_s: float) -> Graded:
        """What can be asked without measuring; then a fit to what is measured."""
        graded = super().grade(code, seed, timeout_s)
        if graded.finding is not None:
            return graded
        measured = Measured(random.Random(f"{seed}/measured"))
        question: Question[None] = Question(
            "fit", (measured.shown,), "times measured on paced links", None
        )
        answers = ask_patiently(code, [question], timeout_s, self.answers_are_in)
        finding = answers if isinstance(answers, Finding) else wrong_form(question, answers[0])
        if finding is None and not isinstance(answers, Finding):
            alpha, beta = answers[0]
            finding = does_not_predict(
                (alpha, beta), measured.shown, measured.held_back, measured.noise
            )
        return Graded(finding, graded.tried)

    def tried(self, questions: Sequence[Question[Known]]) -> str:
        """`30 questions, and a link to measure`"""
        return f"{len(questions)} questions, and a link that was measured"


GRADER = AlphaBeta()
