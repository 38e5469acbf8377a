"""zero2_gradients is graded on segments, on the peak of memory, and on bytes sent.

What is left to the learner: whether reductions overlap with backward, and where the divisions are.
"""

import dataclasses
import random
import re
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.gradient_hooks import hooks_left
from labkit.grade.graders.zero2_budget import more_memory, more_traffic, reduced_late
from labkit.grade.graders.zero2_inputs import given_in, random_cases
from labkit.grade.graders.zero2_values import (
    changed_arguments,
    gradients_left,
    not_from_collectives,
    wrong_form,
    wrong_segments,
)
from labkit.grade.graders.zero2_watch import seen_on, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome

# What torch and Python say where a tensor is expected, and .grad is None.
_NO_GRADIENT = re.compile(
    r"'NoneType' object has no attribute '(flatten|view|reshape|ravel|numel|detach|clone|numpy)'"
    "|but got NoneType"
)


class Zero2Gradients(OnRanks):
    """The grader of zero2_gradients."""

    functions: Sequence[str] = ("zero2_gradients",)
    allowed: Sequence[str] = ("all_reduce", "reduce_scatter")
    call = staticmethod(watched)
    num_arguments = 4
    shown_by_a_pass = (
        "each rank has its segments of the mean over all microbatches of all ranks; at no moment "
        "were more than two buckets of gradients in memory besides, and each bucket travelled once "
        "for each microbatch"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Several microbatches, one, a late rank."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: values, what is left, memory, traffic."""
        found = diagnosis.unlisted_operation(evidence, self.allowed)
        if found is not None:
            return found
        given, seen = given_in(evidence.case), seen_on(evidence)
        found = wrong_form(evidence, given, seen)
        if found is None and evidence.case.altered is not None:
            return not_from_collectives(evidence, given, seen)
        return (
            found
            or changed_arguments(evidence, seen)
            or wrong_segments(evidence, given, seen)
            or gradients_left(evidence, seen)
            or hooks_left(evidence, [each.num_hooks_left for each in seen])
            or more_memory(evidence, given, seen)
            or reduced_late(evidence, given)
            or more_traffic(evidence, given)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Here two collectives are allowed; and they cut into equal parts."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than the two")
        if finding.outcome is Outcome.CRASHED and "equal blocks of dim 0" in finding.explanation:
            return dataclasses.replace(
                finding, diagnosis="crashes where n does not divide a bucket", hint=2
            )
        if finding.outcome is Outcome.CRASHED and _NO_GRADIENT.search(finding.explanation):
            return dataclasses.replace(
                finding,
                diagnosis="takes a gradient that has not come yet",
                explanation="a gradient of the bucket is None. Within a bucket they come as "
                "backward makes them, and not in the order of the list: whose hook is called last, "
                f"only counting tells. {finding.explanation}",
                hint=2,
            )
        return finding


GRADER = Zero2Gradients()
