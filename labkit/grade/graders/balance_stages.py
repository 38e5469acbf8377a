"""balance_stages is graded on layers drawn for each check: any cut passes that none is better than.

The budget hardly needs a clock. Of 60 layers and 8 stages there are 3 * 10**8 cuts: who tries them
all needs many minutes, on any machine, and everybody else milliseconds. For 200 layers on 16 stages
a slow machine gets more time.
"""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.balance_questions import Layers, Stages, draw, one_of_the_best, slowest
from labkit.grade.graders.balance_theories import THEORIES, Pair
from labkit.grade.hang import OF_A_BUSY_MACHINE
from labkit.grade.outcome import Finding, Graded, Outcome
from labkit.grade.submission import Submission

_CONTRACT = "a list with the list of its layers for each stage, such as [[0, 1, 2], [3, 4], [5]]"
_MORE_PATIENCE = 4.0
_TOO_SLOW = {
    "middling": (
        "tries every cut",
        "small pipelines are done, and one of 60 layers on 8 stages is not: there are C(59, 7) = "
        "3 * 10**8 cuts, and 10**22 of 200 layers on 16. The best cut of the first n layers into k "
        "stages is made of a best cut of fewer layers into k - 1: work each of these out once",
    ),
    "large": (
        "too slow for 200 layers",
        "60 layers on 8 stages are done, and 200 on 16 are not. There are 200 * 16 best cuts of "
        "the first n layers into k stages, each the best of at most 200 choices: some 300,000 "
        "steps. Keep what is worked out, and take sums from running totals",
    ),
}


class BalanceStages(Answers[Layers]):
    """The grader of balance_stages."""

    functions: Sequence[str] = ("balance",)
    answers_are_in: Sequence[str] = ("pipeline", "grade/graders")
    arguments_stay = True
    shown_by_a_pass = (
        "no cut is better than yours: not with a head that costs several blocks, not with costs "
        "that differ by a thousandth, and not for 200 layers on 16 stages"
    )

    def questions(self, rng: random.Random) -> list[Question[Layers]]:
        """Fresh layers."""
        return draw(rng)

    def judge(
        self, questions: Sequence[Question[Layers]], answers: Sequence[Any]
    ) -> Finding | None:
        """Are they cuts? And if so, are they the best?"""
        for question, answer in zip(questions, answers, strict=True):
            wrong = _wrong_form(question.known, answer) or _no_cut(question.known, answer)
            if wrong is not None:
                name, explanation, hint = wrong
                return Finding(Outcome.WRONG, name, explanation, question.label, hint)
        pairs = [(each.known, _lists(answer)) for each, answer in zip(questions, answers)]
        wrong_cuts = [pair for pair in pairs if slowest(pair[0].costs, pair[1]) > pair[0].best]
        return _finding(pairs, wrong_cuts) if wrong_cuts else None

    def grade(self, code: Submission, seed: int, timeout_s: float) -> Graded:
        """As all answers are; who does not end where there are many cuts tries them all."""
        graded = super().grade(code, seed, timeout_s)
        if _size_at_the_end(graded, seed) == "large":
            graded = super().grade(code, seed, _MORE_PATIENCE * timeout_s)
        where = _size_at_the_end(graded, seed)
        if not where or graded.finding is None:
            return graded
        name, explanation = _TOO_SLOW[where]
        finding = dataclasses.replace(
            graded.finding, diagnosis=name, explanation=explanation, hint=2
        )
        return dataclasses.replace(graded, finding=finding)

    def tried(self, questions: Sequence[Question[Layers]]) -> str:
        """`29 pipelines`"""
        return f"{len(questions)} pipelines"


def _size_at_the_end(graded: Graded, seed: int) -> str:
    """The size of the pipeline at which the code did not come to its end: "", if it is small."""
    finding = graded.finding
    if finding is None or finding.outcome is not Outcome.HUNG:
        return ""
    if finding.diagnosis in OF_A_BUSY_MACHINE:
        return ""
    sizes = {each.label: each.known.size for each in draw(random.Random(seed))}
    return next((size for label, size in sizes.items() if finding.first_seen.endswith(label)), "")


_Wrong = tuple[str, str, int]


def _wrong_form(layers: Layers, answer: Any) -> _Wrong | None:
    is_list = isinstance(answer, list | tuple)
    is_list = is_list and all(isinstance(stage, list | tuple) for stage in answer)
    if is_list and all(type(layer) is int for stage in answer for layer in stage):
        return None
    return (
        "returns something else",
        f"it returns {str(answer)[:80]}; the contract is {_CONTRACT}",
        3,
    )


def _no_cut(layers: Layers, answer: Sequence[Sequence[int]]) -> _Wrong | None:
    """What is wrong with stages that are no cut of these layers."""
    return _no_stages(layers, answer) or _not_each_layer(layers, answer) or _no_neighbours(answer)


def _no_stages(layers: Layers, answer: Sequence[Sequence[int]]) -> _Wrong | None:
    """Where ranks would have nothing to do, or there are more or fewer stages than ranks."""
    empty = [number for number, stage in enumerate(answer) if not stage]
    if empty:
        return (
            "leaves a stage without layers",
            f"stage {empty[0]} of {len(answer)} has none. A rank that has nothing to do makes no "
            "step faster: where fewer stages are enough, cut one of them in two",
            3,
        )
    if len(answer) != layers.num_stages:
        return (
            "another number of stages",
            f"there are {len(answer)} stages, and {layers.num_stages} ranks to give them to. Where "
            "fewer are enough to keep to a limit, cut some in two: that makes no stage slower",
            2,
        )
    return None


def _not_each_layer(layers: Layers, answer: Sequence[Sequence[int]]) -> _Wrong | None:
    """Where a layer is missing, or there twice, or none of these."""
    last = len(layers.costs) - 1
    found = [layer for stage in answer for layer in stage]
    strange = [layer for layer in found if not 0 <= layer <= last]
    if strange:
        return (
            "names a layer that there is not",
            f"layer {strange[0]}: {last + 1} layers are numbered 0 to {last}. Give numbers of "
            "layers, not their costs",
            3,
        )
    missing = sorted(set(range(last + 1)) - set(found))
    if missing:
        return (
            "loses a layer",
            f"layer {missing[0]} of 0 to {last} is in no stage: the model would do without it",
            3,
        )
    if len(found) > last + 1:
        twice = next(layer for layer in found if found.count(layer) > 1)
        return ("gives a layer to two stages", f"layer {twice} is there more than once", 3)
    return None


def _no_neighbours(answer: Sequence[Sequence[int]]) -> _Wrong | None:
    """Where each layer is there once, but not in the order in which a microbatch passes them."""
    found = [layer for stage in answer for layer in stage]
    if found == sorted(found):
        return None
    if any(sorted(stage) != list(range(min(stage), max(stage) + 1)) for stage in answer):
        return (
            "gives a stage layers that are no neighbours",
            "a microbatch passes the layers in their order. A stage with layers from here and "
            "there would have to send it away and get it back for each of them",
            1,
        )
    return ("stages in another order", "stage 0 has the first layers, in their order", 3)


def _lists(answer: Sequence[Sequence[int]]) -> Stages:
    return [list(stage) for stage in answer]


def _finding(pairs: Sequence[Pair], wrong: Sequence[Pair]) -> Finding:
    """By the theory that explains all cuts, the right ones as well."""
    theory = next((each for each in THEORIES if each.explains(pairs)), None)
    layers, stages = wrong[0]
    best = one_of_the_best(layers.costs, layers.num_stages)
    seen = (
        f"{layers}: your slowest stage costs {slowest(layers.costs, stages):,}, and "
        f"{layers.best:,} can be reached"
    )
    return Finding(
        Outcome.WRONG,
        "a slower cut than the best" if theory is None else theory.name,
        f"{len(wrong)} of {len(pairs)} cuts have a slowest stage that could be faster. Work one of "
        "them out on paper: first layers by number, then stages by number"
        if theory is None
        else theory.explanation,
        seen,
        2 if theory is None else theory.hint,
        details=f"yours     {_shown(layers, stages)}\npossible  {_shown(layers, best)}",
    )


def _shown(layers: Layers, stages: Stages) -> str:
    """`[1 4 4] [4 4] [9]`, costs; for many layers, how many a stage has."""
    if layers.size:
        return "layers by stage: " + " ".join(str(len(stage)) for stage in stages)
    return " ".join(
        "[" + " ".join(str(layers.costs[layer]) for layer in stage) + "]" for stage in stages
    )


GRADER = BalanceStages()
