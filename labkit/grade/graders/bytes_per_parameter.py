"""bytes_per_parameter is graded on recipes that people mean, and on others drawn for each check."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory, is_number
from labkit.grade.graders.recipe_questions import FUNCTIONS, Kept, draw
from labkit.grade.graders.recipe_theories import LEVELS, TOTALS, levels, total


class BytesPerParameter(ByTheory[Kept]):
    """The grader of bytes_per_parameter."""

    functions: Sequence[str] = FUNCTIONS
    answers_are_in: Sequence[str] = ("calc", "grade/graders")
    arguments_stay = True
    rights = {"bytes_per_parameter": total, "sharded_from": levels}
    theories = {"bytes_per_parameter": TOTALS, "sharded_from": LEVELS}
    shown_by_a_pass = (
        "you count what each recipe keeps, and nothing else: 16 of the ZeRO paper's, 18 of "
        "Megatron-LM's; and you know which of it each level of ZeRO shards"
    )

    def questions(self, rng: random.Random) -> list[Question[Kept]]:
        """Fresh recipes."""
        return draw(rng)

    def wrong_form(self, function: str, answer: Any) -> str:
        """A number, or a dict of three."""
        if function == "bytes_per_parameter":
            return "" if is_number(answer) else "a number of bytes, such as 16"
        is_form = isinstance(answer, dict) and set(answer) == {1, 2, 3}
        if is_form and all(map(is_number, answer.values())):
            return ""
        return "a dict of three numbers, such as {1: 12, 2: 2, 3: 2}"

    def unexplained(self, function: str, pairs: Sequence[tuple[Kept, Any]]) -> tuple[str, str]:
        """A constant, or something else."""
        if len({str(answer) for _, answer in pairs}) == 1:
            return (
                "one number for every recipe",
                "12, 16, 18 and 20 are numbers of certain recipes: add up what this one keeps",
            )
        if function == "sharded_from":
            return (
                "another share of a level",
                "level 1: master and moments; level 2: gradients; level 3: parameters",
            )
        return (
            "another number of bytes",
            "add up parameters, gradients, master and each of the moments, each in its own dtype",
        )

    def tried(self, questions: Sequence[Question[Kept]]) -> str:
        """`20 recipes`"""
        return f"{len({id(each.known) for each in questions})} recipes"


GRADER = BytesPerParameter()
