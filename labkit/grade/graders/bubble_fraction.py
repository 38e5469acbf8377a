"""bubble_fraction is graded on drills drawn for each check, against simulated schedules."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.comm.words import listed
from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory, agree, is_number
from labkit.grade.graders.bubble_questions import (
    Drill,
    draw,
    is_at_the_edge,
    right_bubble,
    right_microbatches,
)
from labkit.grade.graders.bubble_theories import BUBBLE, MICROBATCHES


class BubbleFraction(ByTheory[Drill]):
    """The grader of bubble_fraction."""

    functions: Sequence[str] = ("bubble", "microbatches_for")
    answers_are_in: Sequence[str] = ("calc", "pipeline", "grade/graders")
    rights: Mapping[str, Any] = {"bubble": right_bubble, "microbatches_for": right_microbatches}
    theories = {"bubble": BUBBLE, "microbatches_for": MICROBATCHES}
    rtol = 1e-9
    shown_by_a_pass = (
        "you know the bubble of five schedules by both conventions, with few microbatches and with "
        "many, and how many of them keep it at a limit, to the microbatch"
    )

    def questions(self, rng: random.Random) -> list[Question[Drill]]:
        """Fresh drills."""
        return draw(rng)

    def wrong_form(self, function: str, answer: Any) -> str:
        """A number; or a whole number or None."""
        if function == "bubble":
            return "" if is_number(answer) else "a number, the share"
        is_count = type(answer) is int and answer >= 1
        return "" if is_count or answer is None else "a whole number of 1 or more, or None"

    def unexplained(self, function: str, pairs: Sequence[tuple[Drill, Any]]) -> tuple[str, str]:
        """Where it is wrong: at the edge, or for which schedules."""
        right = self.rights[function]
        wrong = [drill for drill, answer in pairs if not agree(answer, right(drill), self.rtol)]
        if function == "microbatches_for" and all(map(is_at_the_edge, wrong)):
            return (
                "rounds at the edge",
                f"{len(wrong)} of {len(pairs)} answers are wrong, and all of them where the "
                "bubble is just what is allowed. Quotients of floats come out a little too large "
                "or too small there: multiply out, and compare whole numbers",
            )
        of_schedules = sorted({drill.schedule for drill in wrong})
        lone = " for one rank" if all(drill.p == 1 for drill in wrong) else ""
        advice = self._by_schedule(function, pairs, of_schedules) or (
            "Draw the schedule of 4 ranks and 4 microbatches, and count what is empty"
        )
        return (
            "another bubble" if function == "bubble" else "another number of microbatches",
            f"{len(wrong)} of {len(pairs)} answers are wrong{lone}: {listed(of_schedules)}. "
            f"{advice}",
        )

    def _by_schedule(
        self, function: str, pairs: Sequence[tuple[Drill, Any]], schedules: Sequence[str]
    ) -> str:
        """For each schedule the mistake that explains its answers; empty if one has none."""
        if len(schedules) < 2:
            return ""
        told = []
        for schedule in schedules:
            its = [pair for pair in pairs if pair[0].schedule == schedule]
            for theory in self.theories[function]:
                if all(agree(answer, theory.answer(drill), self.rtol) for drill, answer in its):
                    told.append(f"{schedule}: {theory.name}")
                    break
        return "; ".join(told) if len(told) == len(schedules) else ""

    def tried(self, questions: Sequence[Question[Drill]]) -> str:
        """`56 drills`"""
        return f"{len(questions)} drills, each performed in a simulation"


GRADER = BubbleFraction()
