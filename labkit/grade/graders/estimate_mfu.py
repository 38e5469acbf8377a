"""estimate_mfu is graded on models and logs drawn for each check, against the calculator."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.comm.words import listed
from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory, agree, is_number
from labkit.grade.graders.mfu_questions import Asked, draw, right_flops, right_hfu, right_mfu
from labkit.grade.graders.mfu_run_theories import HFU, MFU
from labkit.grade.graders.mfu_theories import FLOPS

_WANTED = {
    "flops_per_token": "a number of operations",
    "mfu": "a number, the share",
    "hfu": "a number, the share",
}
_OTHER = {
    "flops_per_token": "another number of operations",
    "mfu": "another MFU",
    "hfu": "another HFU",
}


class EstimateMfu(ByTheory[Asked]):
    """The grader of estimate_mfu."""

    functions: Sequence[str] = ("flops_per_token", "mfu", "hfu")
    answers_are_in: Sequence[str] = ("calc", "grade/graders")
    arguments_stay = True
    rights: Mapping[str, Any] = {
        "flops_per_token": right_flops,
        "mfu": right_mfu,
        "hfu": right_hfu,
    }
    theories = {"flops_per_token": FLOPS, "mfu": MFU, "hfu": HFU}
    # Norms are 2 of a layer's 12 or so hidden sizes squared: with 2,048 below a ten-thousandth.
    rtol = 1e-3
    shown_by_a_pass = (
        "you count what multiplies, and nothing else, and turn a log into MFU and HFU whatever "
        "peak, tokens and recomputation it tells of"
    )

    def questions(self, rng: random.Random) -> list[Question[Asked]]:
        """Fresh models and logs."""
        return draw(rng)

    def wrong_form(self, function: str, answer: Any) -> str:
        """A number."""
        return "" if is_number(answer) else _WANTED[function]

    def unexplained(self, function: str, pairs: Sequence[tuple[Asked, Any]]) -> tuple[str, str]:
        """For which models, or logs."""
        right = self.rights[function]
        wrong = [a for a, answer in pairs if not agree(answer, right(a), self.rtol)]
        traits = {
            "a gated MLP": lambda asked: asked.config.gated,
            "a tied head": lambda asked: asked.config.tied,
            "fewer key heads": lambda asked: asked.config.num_kv_heads < asked.config.heads,
            "a peak with sparsity": lambda asked: asked.sparsity,
            "tokens of one device": lambda asked: asked.logged_by == "device",
            "full recomputation": lambda asked: asked.recompute == "full",
            "selective recomputation": lambda asked: asked.recompute == "selective",
        }
        common = [name for name, has in traits.items() if all(map(has, wrong))]
        where = f", all of them with {listed(common)}" if common else ""
        return (
            _OTHER[function],
            f"{len(wrong)} of {len(pairs)} answers are wrong{where}. Write down the matrices of "
            "one layer with their sizes, then the head, then 12 L H K s for the scores, and only "
            "then what the log says",
        )

    def tried(self, questions: Sequence[Question[Asked]]) -> str:
        """`45 questions about 15 models`"""
        num_models = len({each.known.config for each in questions})
        return f"{len(questions)} questions about {num_models} models"


GRADER = EstimateMfu()
