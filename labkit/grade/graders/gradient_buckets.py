"""gradient_buckets is graded on bounds, then on what the reduction of buckets leaves and sends.

The bounds are asked for in a process that answers; the reduction runs on ranks
(bucket_reduction.py), where the bounds are right.
"""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.bucket_answers import wrong_buckets, wrong_form
from labkit.grade.graders.bucket_inputs import draw
from labkit.grade.graders.bucket_reduction import ReduceBuckets
from labkit.grade.graders.bucket_rules import Asked
from labkit.grade.outcome import Finding, Graded
from labkit.grade.submission import Submission


class GradientBuckets(Answers[Asked]):
    """The grader of gradient_buckets."""

    functions: Sequence[str] = ("gradient_buckets", "reduce_buckets")
    answers_are_in: Sequence[str] = ("data_parallel", "grade/graders")
    shown_by_a_pass = (
        "the buckets hold what they should, to the byte, and each is one all-reduce, which leaves "
        "the means in the gradients"
    )

    def questions(self, rng: random.Random) -> list[Question[Asked]]:
        """Sizes: mixed, exactly full, larger than a bucket, one, none."""
        return [
            Question(
                "gradient_buckets",
                (list(each.numels), each.itemsize, each.bucket_bytes),
                f"{len(each.numels)} gradients",
                each,
            )
            for each in draw(rng)
        ]

    def judge(self, questions: Sequence[Question[Asked]], answers: Sequence[Any]) -> Finding | None:
        """Form, then the rule that all answers follow."""
        for question, answer in zip(questions, answers, strict=True):
            finding = wrong_form(question.known, answer)
            if finding is not None:
                return finding
        return wrong_buckets([question.known for question in questions], answers)

    def grade(self, code: Submission, seed: int, timeout_s: float) -> Graded:
        """The bounds; then the reduction, with buckets that are right."""
        graded = super().grade(code, seed, timeout_s)
        if graded.finding is not None:
            return graded
        reduced = ReduceBuckets().grade(_only_reduction(code), seed, timeout_s)
        return Graded(reduced.finding, f"{graded.tried}; {reduced.tried}")

    def tried(self, questions: Sequence[Question[Asked]]) -> str:
        """`16 lists of sizes`"""
        return f"{len(questions)} lists of sizes"


def _only_reduction(code: Submission) -> Submission:
    """The same code, of which the second function is called."""
    objects = code.code.objects[1:]
    functions = code.code.functions[1:]
    return dataclasses.replace(
        code, code=dataclasses.replace(code.code, functions=functions, objects=objects)
    )


GRADER = GradientBuckets()
