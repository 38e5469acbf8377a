"""reduce_scatter_all_gather is graded on values, on one call of each, and on how much it pads."""

import dataclasses
import random
from collections.abc import Sequence

import torch

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.ring_inputs import random_cases, whole_numbers
from labkit.grade.graders.two_collectives_calls import missing_call, over_budget
from labkit.grade.graders.two_collectives_values import (
    not_from_collectives,
    wrong_form,
    wrong_values,
)
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding


class ReduceScatterAllGather(OnRanks):
    """The grader of reduce_scatter_all_gather."""

    functions: Sequence[str] = ("reduce_scatter_all_gather",)
    allowed: Sequence[str] = ("reduce_scatter", "all_gather")
    shown_by_a_pass = (
        "the values are right, for any size and shape; one reduce_scatter and one all_gather do "
        "it, with no more padding than it takes for n to divide the size"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Those of ring_all_reduce, and rows. In the last, one collective's input is changed."""
        cases = random_cases(world_size, rng)
        altered = (rng.randrange(world_size), rng.choice((1, 2)))
        return [
            *cases[:2],
            _rows(world_size, rng),
            *(
                case if case.altered is None else dataclasses.replace(case, altered=altered)
                for case in cases[2:]
            ),
        ]

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong, values before budget."""
        form = (
            diagnosis.unlisted_operation(evidence, self.allowed)
            or missing_call(evidence)
            or wrong_form(evidence)
        )
        if form is not None:
            return form
        if evidence.case.altered is not None:
            return not_from_collectives(evidence) or over_budget(evidence)
        return (
            wrong_values(evidence)
            or diagnosis.input_changed(evidence)
            or diagnosis.result_shares_memory(evidence)
            or diagnosis.result_returned_before(evidence)
            or over_budget(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Another collective than the two; and crashes that only some inputs bring about."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than the two")
        before = attempt.cases[: attempt.cases.index(evidence)]
        if not before or not finding.diagnosis.startswith(("raises ", "its process ended")):
            return finding
        if _is_uneven(evidence) and not any(_is_uneven(each) for each in before):
            return _crash_where(
                finding,
                "crashes where n does not divide the size",
                "reduce_scatter cuts its argument into n equal parts, so make it divisible: "
                "flatten x, and add zeros at the end",
            )
        if not _is_contiguous(evidence) and all(_is_contiguous(each) for each in before):
            return _crash_where(
                finding,
                "crashes where x is not contiguous",
                "x.view(-1) works only where x's elements lie in memory in their order; "
                "x.flatten() and x.reshape(-1) work for a transposed x as well",
            )
        return finding


def _rows(world_size: int, rng: random.Random) -> Case:
    """One row more than ranks: who pads rows, pads too much."""
    shape = (world_size + 1, rng.randrange(2, 6))
    arguments = tuple((whole_numbers(shape, torch.float32, rng),) for _ in range(world_size))
    return Case(f"float32 of shape {shape}", arguments, (0.0,) * world_size)


def _crash_where(finding: Finding, name: str, why: str) -> Finding:
    explanation = f"{why}. {finding.explanation}"
    return dataclasses.replace(finding, diagnosis=name, explanation=explanation, hint=3)


def _is_uneven(evidence: CaseEvidence) -> bool:
    return bool(evidence.case.arguments[0][0].numel() % evidence.world_size)


def _is_contiguous(evidence: CaseEvidence) -> bool:
    return bool(evidence.case.arguments[0][0].is_contiguous())


GRADER = ReduceScatterAllGather()
