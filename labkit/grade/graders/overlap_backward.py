"""overlap_backward is graded on gradients, and on the order of events in the journal.

What is left to the learner: one all-reduce per parameter or buckets, in place or not, and which
order the ranks agree on, as long as it lets one begin in time.
"""

import dataclasses
import random
from collections.abc import Sequence

import torch

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.gradient_hooks import hooks_left
from labkit.grade.graders.gradient_values import changed_parameters, left_on, wrong_gradients
from labkit.grade.graders.gradient_wire import more_than_gradients, not_from_collectives
from labkit.grade.graders.overlap_inputs import NAMES, given_in, random_cases, with_loss
from labkit.grade.graders.overlap_order import not_one_backward, not_overlapped
from labkit.grade.graders.overlap_theories import (
    MIXED,
    ONE_ORDER,
    WHY_MIXED,
    frozen_ones,
    theories,
)
from labkit.grade.mismatch import OTHER_ORDER
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome


class OverlapBackward(OnRanks):
    """The grader of overlap_backward."""

    functions: Sequence[str] = ("overlap_backward",)
    allowed: Sequence[str] = ("all_reduce",)
    call = staticmethod(with_loss)
    num_arguments = 3
    shown_by_a_pass = (
        "the gradients are means over the ranks, whichever is there first; all-reduces begin "
        "before the last gradient is there, and each has been waited for"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """One order of gradients, frozen parameters, another order on odd ranks, a late rank."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: values, order, budget, hooks."""
        given = given_in(evidence)
        found = diagnosis.unlisted_operation(evidence, self.allowed)
        num_hooks, evidence = _without_hooks(evidence)
        left = left_on(evidence, NAMES)
        if found is not None or isinstance(left, Finding):
            return found or (left if isinstance(left, Finding) else None)
        if evidence.case.altered is not None:
            return not_from_collectives(evidence, left, given.mean())
        otherwise = "each is to be the mean of the same parameter's gradients on all ranks"
        return (
            not_one_backward(evidence, given)
            or changed_parameters(evidence, left, given.parameters)
            or frozen_ones(evidence, given, left)
            or wrong_gradients(evidence, left, given.mean(), theories(evidence, given), otherwise)
            or not_overlapped(evidence)
            or more_than_gradients(
                evidence, [given.parameters[name].nbytes for name in given.trained]
            )
            or hooks_left(evidence, num_hooks)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What only frozen parameters bring about, and what only another order does."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than all_reduce")
        if finding.diagnosis == OTHER_ORDER:  # the names of the parameters have told it
            why = f"{WHY_MIXED}. {ONE_ORDER}. What happened: {finding.explanation}"
            return dataclasses.replace(finding, diagnosis=MIXED, explanation=why, hint=3)
        frozen = given_in(evidence).frozen
        if finding.outcome is Outcome.CRASHED and frozen:
            return dataclasses.replace(
                finding,
                diagnosis="crashes on a frozen parameter",
                explanation=f"{' and '.join(frozen)} are frozen: they have no gradient, and take "
                f"no hook for it. Leave them out. What happened: {finding.explanation}",
                hint=3,
            )
        return finding


def _without_hooks(evidence: CaseEvidence) -> tuple[list[int], CaseEvidence]:
    """By rank: hooks that the call has left; and the evidence less that."""
    num_hooks, records = [], []
    for record in evidence.records:
        outputs: list[torch.Tensor] = [] if record is None else record.outputs
        num_hooks.append(int(outputs[0]) if outputs else 0)
        records.append(record and dataclasses.replace(record, outputs=outputs[1:]))
    return num_hooks, dataclasses.replace(evidence, records=tuple(records))


GRADER = OverlapBackward()
