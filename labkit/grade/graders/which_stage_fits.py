"""which_stage_fits is graded on setups drawn for each check, half of them at the last byte."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory
from labkit.grade.graders.fit_questions import (
    LEVELS,
    TERMS,
    Setup,
    draw,
    is_close_call,
    right,
)
from labkit.grade.graders.fit_theories import THEORIES


class WhichStageFits(ByTheory[Setup]):
    """The grader of which_stage_fits."""

    functions: Sequence[str] = ("which_stage_fits",)
    answers_are_in: Sequence[str] = ("calc", "grade/graders")
    rights: Mapping[str, Any] = {"which_stage_fits": right}
    theories = {"which_stage_fits": THEORIES}
    shown_by_a_pass = (
        "you find the lowest level that fits, to the byte, say so where none does, and know what "
        "each level below breaks on"
    )

    def questions(self, rng: random.Random) -> list[Question[Setup]]:
        """Fresh setups."""
        return draw(rng)

    def wrong_form(self, function: str, answer: Any) -> str:
        """A level and a list of names."""
        is_pair = isinstance(answer, list | tuple) and len(answer) == 2
        if is_pair and _is_level(answer[0]) and _are_names(answer[1]):
            return ""
        return (
            "a level, or None, and a list of names, such as "
            '(2, ["optimizer", "gradients"]); the names are ' + ", ".join(TERMS)
        )

    def unexplained(self, function: str, pairs: Sequence[tuple[Setup, Any]]) -> tuple[str, str]:
        """A level, or a name."""
        wrong = [(right(setup), answer) for setup, answer in pairs if answer[0] != right(setup)[0]]
        if not wrong:
            return (
                "another term than the largest",
                "every level is right; the list names the largest term of each level below it",
            )
        levels_of = [setup for setup, answer in pairs if answer[0] != right(setup)[0]]
        if all(map(is_close_call, levels_of)):
            return (
                "rounds at the last byte",
                f"{len(wrong)} of {len(pairs)} levels are wrong, and all of them where what is "
                "needed and what there is are equal, or a byte apart. Quotients such as "
                "bytes / 1e9 are rounded, and their sum is a little too large or too small: add "
                "up whole bytes, and compare those",
            )
        return (
            "another level",
            f"{len(wrong)} of {len(pairs)} levels are wrong. Write the five terms of each level "
            "down, add them up in bytes, and take the first sum that is at most the memory",
        )

    def tried(self, questions: Sequence[Question[Setup]]) -> str:
        """`120 setups`"""
        return f"{len(questions)} setups"


def _is_level(value: Any) -> bool:
    return value is None or (type(value) is int and value in LEVELS)


def _are_names(value: Any) -> bool:
    is_list = isinstance(value, list | tuple)
    return is_list and all(type(name) is str and name in TERMS for name in value)


GRADER = WhichStageFits()
