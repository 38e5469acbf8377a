"""find_the_deadlock is graded against real runs of the programs, as their journals show them."""

import itertools
import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.deadlock_answers import (
    constant_answer,
    leavers_named,
    wrong_answer,
    wrong_form,
)
from labkit.grade.graders.deadlock_programs import PROGRAMS
from labkit.grade.graders.deadlock_runs import run_all
from labkit.grade.outcome import Finding

Job = tuple[str, int]
"""A program's name, and on how many ranks."""


class FindTheDeadlock(Answers[Job]):
    """The grader of find_the_deadlock."""

    functions: Sequence[str] = tuple(f"waits_in_{program}" for program in PROGRAMS)
    shown_by_a_pass = (
        "your answers are what the ranks' journals show, rank by rank, for world sizes from 2 to 6 "
        "drawn for this check"
    )

    def questions(self, rng: random.Random) -> list[Question[Job]]:
        """Every program at three world sizes: small, odd and even."""
        world_sizes = (2, rng.choice((3, 5)), rng.choice((4, 6)))
        return [
            Question(f"waits_in_{program}", (n,), f"{program} on {n} ranks", (program, n))
            for program in PROGRAMS
            for n in sorted(world_sizes)
        ]

    def judge(self, questions: Sequence[Question[Job]], answers: Sequence[Any]) -> Finding | None:
        """Form first. Then, the answers being in, the runs: program by program."""
        for question, answer in zip(questions, answers, strict=True):
            finding = wrong_form(answer, question.known[1], question.function)
            if finding is not None:
                return finding
        jobs = [question.known for question in questions]
        with closing(run_all(jobs)) as runs:
            pairs = zip(answers, runs, strict=True)
            for _, group in itertools.groupby(pairs, key=lambda pair: pair[1].program):
                of_program = list(group)
                finding = constant_answer(of_program) or leavers_named(of_program)
                for answer, shown in of_program:
                    finding = finding or wrong_answer(answer, shown)
                if finding is not None:
                    return finding
        return None

    def tried(self, questions: Sequence[Question[Job]]) -> str:
        """`5 programs, each run for real at 3 world sizes`"""
        num_programs = len({program for program, _ in (each.known for each in questions)})
        noun = "program" if num_programs == 1 else "programs"
        return f"{num_programs} {noun}, each run for real on 3 numbers of ranks"


GRADER = FindTheDeadlock()
