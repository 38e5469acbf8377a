"""model_state_bytes is graded on models, recipes, levels and ranks, drawn for each check."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory, is_number
from labkit.grade.graders.state_questions import Asked, draw, right
from labkit.grade.graders.state_theories import THEORIES


class ModelStateBytes(ByTheory[Asked]):
    """The grader of model_state_bytes."""

    functions: Sequence[str] = ("model_state_bytes",)
    answers_are_in: Sequence[str] = ("calc", "grade/graders")
    rights = {"model_state_bytes": right}
    theories = {"model_state_bytes": THEORIES}
    shown_by_a_pass = (
        "you know to the byte what the fullest rank holds at every level, for any recipe, and also "
        "where the ranks do not divide the parameters"
    )

    def questions(self, rng: random.Random) -> list[Question[Asked]]:
        """Fresh models, each at every level."""
        return draw(rng)

    def wrong_form(self, function: str, answer: Any) -> str:
        """A number; a float is held against the same bytes."""
        return "" if is_number(answer) else "a whole number of bytes"

    def unexplained(self, function: str, pairs: Sequence[tuple[Asked, Any]]) -> tuple[str, str]:
        """The levels that are wrong."""
        wrong = sorted({asked.zero for asked, answer in pairs if answer != right(asked)})
        levels = " and ".join(map(str, wrong))
        if all(answer == right(asked) for asked, answer in pairs if asked.dp == 1):
            return (
                "another number of bytes",
                f"on one rank all is right; on several it is wrong at zero {levels}. What is "
                "sharded has ceil(num_params / dp) parameters, and what is not has num_params",
            )
        return (
            "another number of bytes",
            f"wrong at zero {levels}, on one rank as well: write down the bytes per parameter of "
            "each kind first",
        )

    def tried(self, questions: Sequence[Question[Asked]]) -> str:
        """`44 questions about 11 models`"""
        num_models = len({(each.known.num_params, each.known.dp) for each in questions})
        return f"{len(questions)} questions about {num_models} models"


GRADER = ModelStateBytes()
