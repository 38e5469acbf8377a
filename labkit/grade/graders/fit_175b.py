"""fit_175b is graded by the planner: on its rules, its memory, and its seconds of a step.

Tasks are drawn for each check, and the planner works here, not where the learner's code runs. No
layout is the wanted one: any passes that no rule refuses, that fits, and that is within BUDGET of
the fastest.
"""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders import layout_whys
from labkit.grade.graders.layout_answers import Given, Wrong, all_alike, read, wrong_form
from labkit.grade.graders.layout_memory import over_bytes, why_too_large
from labkit.grade.graders.layout_speed import is_slow, why_slow
from labkit.grade.graders.layout_tasks import draw
from labkit.grade.outcome import Finding, Outcome

_WHY_NOT = layout_whys.WhyNot()
_Pair = tuple[Question[Any], Any]


class Fit175B(Answers[Any]):
    """The grader of fit_175b."""

    functions: Sequence[str] = ("layout", "why_not")
    answers_are_in: Sequence[str] = ("calc", "grade/graders")
    arguments_stay = True
    shown_by_a_pass = (
        "your layouts keep to the planner's rules, fit, and are within a fifth of its fastest, "
        "whatever model and cluster; and of a layout you name what fills its GPUs"
    )

    def questions(self, rng: random.Random) -> list[Question[Any]]:
        """Fresh tasks, and layouts of them."""
        tasks = draw(rng)
        return [
            *(Question("layout", (each.as_dict,), str(each), each) for each in tasks),
            *layout_whys.draw(rng, tasks),
        ]

    def judge(self, questions: Sequence[Question[Any]], answers: Sequence[Any]) -> Finding | None:
        """What a layout holds comes first: who counts it wrongly finds wrong layouts, too."""
        pairs = list(zip(questions, answers, strict=True))
        whys = [pair for pair in pairs if pair[0].function == "why_not"]
        layouts = [pair for pair in pairs if pair[0].function == "layout"]
        for question, answer in layouts:
            if wrong := wrong_form(answer):
                return _finding(wrong, question)
        finding = _WHY_NOT.judge(*zip(*whys, strict=True)) if whys else None
        return finding or _of_layouts(layouts)

    def tried(self, questions: Sequence[Question[Any]]) -> str:
        """`8 tasks and 29 layouts`"""
        num = sum(each.function == "layout" for each in questions)
        return f"{num} tasks and {len(questions) - num} layouts"


def _of_layouts(pairs: Sequence[_Pair]) -> Finding | None:
    """Rules, then memory, then seconds; where any of it is wrong, is it one layout for all?"""
    given: list[Given] = []
    finding = None
    for question, answer in pairs:
        found = read(question.known, answer)
        if isinstance(found, Wrong):
            finding = finding or _finding(found, question)
        else:
            given.append(found)
    finding = finding or _too_large(given) or _too_slow(given)
    if finding is not None and all_alike([answer for _, answer in pairs]):
        name = "the same layout for every task"
        said = (
            "a layout is found for a model, a cluster and a batch: this one was the answer to "
            f"another question. Of {finding.first_seen}: {finding.explanation}"
        )
        return Finding(Outcome.WRONG, name, said, finding.first_seen, 1)
    return finding


def _too_large(given: Sequence[Given]) -> Finding | None:
    too_large = [each for each in given if over_bytes(each) > 0]
    if not too_large:
        return None
    return _finding(why_too_large(given, too_large), str(too_large[0].task))


def _too_slow(given: Sequence[Given]) -> Finding | None:
    slow = [each for each in given if is_slow(each)]
    if not slow:
        return None
    return _finding(why_slow(given, slow), str(slow[0].task), Outcome.OVER_BUDGET)


def _finding(wrong: Wrong, seen: Question[Any] | str, outcome: Outcome = Outcome.WRONG) -> Finding:
    label = seen if isinstance(seen, str) else seen.label
    return Finding(outcome, wrong.name, wrong.explanation, label, wrong.hint)


GRADER = Fit175B()
