"""activation_bytes is graded on layers drawn for each check, with every way to keep less."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.comm.words import listed
from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory, agree, is_number
from labkit.grade.graders.activation_questions import Layer, draw, right
from labkit.grade.graders.activation_theories import THEORIES

_FEATURES: Mapping[str, Callable[[Layer], bool]] = {
    "flash attention": lambda layer: layer.flash,
    "selective recomputation": lambda layer: layer.recompute == "selective",
    "full recomputation": lambda layer: layer.recompute == "full",
    "sequence parallelism": lambda layer: layer.sequence_parallel,
    "tensor parallelism": lambda layer: layer.t > 1,
}


class ActivationBytes(ByTheory[Layer]):
    """The grader of activation_bytes."""

    functions: Sequence[str] = ("activation_bytes",)
    answers_are_in: Sequence[str] = ("calc", "grade/graders")
    rights = {"activation_bytes": right}
    theories = {"activation_bytes": THEORIES}
    rtol = 1e-9
    shown_by_a_pass = (
        "34 s b h + 5 a s s b, and what of it each of tensor parallelism, sequence parallelism, "
        "recomputation and flash attention takes away, alone and together"
    )

    def questions(self, rng: random.Random) -> list[Question[Layer]]:
        """Fresh layers."""
        return draw(rng)

    def wrong_form(self, function: str, answer: Any) -> str:
        """A number."""
        return "" if is_number(answer) else "a number of bytes"

    def unexplained(self, function: str, pairs: Sequence[tuple[Layer, Any]]) -> tuple[str, str]:
        """What all layers with a wrong answer have, and none with a right one."""
        wrong = [layer for layer, answer in pairs if not agree(answer, right(layer), self.rtol)]
        of_all = [name for name, has in _FEATURES.items() if all(map(has, wrong))]
        plain = [layer for layer in wrong if not any(has(layer) for has in _FEATURES.values())]
        if plain:
            where = "wrong on one rank with everything kept, which is 34 s b h + 5 a s s b: go "
            where += "through the list, tensor by tensor"
        elif of_all:
            where = f"wrong only with {listed(of_all)}"
        else:
            where = "right on one rank with everything kept; wrong where less is"
        return ("another number of bytes", where)

    def tried(self, questions: Sequence[Question[Layer]]) -> str:
        """`37 layers`"""
        return f"{len(questions)} layers"


GRADER = ActivationBytes()
