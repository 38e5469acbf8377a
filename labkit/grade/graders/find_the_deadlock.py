"""find_the_deadlock is graded against real runs of the programs, as their journals show them."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.deadlock_answers import constant_answer, wrong_answer, wrong_form
from labkit.grade.graders.deadlock_programs import PROGRAMS
from labkit.grade.graders.deadlock_runs import Shown, run_programs
from labkit.grade.outcome import Finding


class FindTheDeadlock(Answers[Shown]):
    """The grader of find_the_deadlock."""

    functions: Sequence[str] = tuple(f"waits_in_{program}" for program in PROGRAMS)
    shown_by_a_pass = (
        "your answers are what the ranks' journals show, rank by rank, for world sizes from 2 to 6 "
        "drawn for this check"
    )

    def questions(self, rng: random.Random) -> list[Question[Shown]]:
        """Every program at three world sizes: small, odd and even."""
        world_sizes = (2, rng.choice((3, 5)), rng.choice((4, 6)))
        return [
            Question(
                f"waits_in_{shown.program}",
                (shown.world_size,),
                f"{shown.program} on {shown.world_size} ranks",
                shown,
            )
            for shown in run_programs(world_sizes)
        ]

    def judge(self, questions: Sequence[Question[Shown]], answers: Sequence[Any]) -> Finding | None:
        """Form first; then program by program, the smallest world size first."""
        for question, answer in zip(questions, answers, strict=True):
            finding = wrong_form(answer, question.shown, question.function)
            if finding is not None:
                return finding
        for function in self.functions:
            pairs = [
                (answer, question.shown)
                for question, answer in zip(questions, answers, strict=True)
                if question.function == function
            ]
            finding = constant_answer([a for a, _ in pairs], [shown for _, shown in pairs])
            for answer, shown in pairs:
                finding = finding or wrong_answer(answer, shown)
            if finding is not None:
                return finding
        return None

    def tried(self, questions: Sequence[Question[Shown]]) -> str:
        """`15 real runs of 5 programs`"""
        programs = {question.shown.program for question in questions}
        noun = "program" if len(programs) == 1 else "programs"
        return f"{len(questions)} real runs of {len(programs)} {noun}"


GRADER = FindTheDeadlock()
