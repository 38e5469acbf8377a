"""zero3_unit is graded on gradients, on the order of gathers and releases, and on bytes sent.

What is left to the learner: whether a unit is gathered in advance, and whether the last unit's
weights stay from forward to backward.
"""

import dataclasses
import random
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.zero3_inputs import Given, given_in, random_cases
from labkit.grade.graders.zero3_order import (
    more_traffic,
    other_order,
    too_few_gathered,
    too_many_gathered,
)
from labkit.grade.graders.zero3_values import all_right, wrong_form, wrong_values
from labkit.grade.graders.zero3_watch import REFUSALS, Seen, seen_on, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome


class Zero3Unit(OnRanks):
    """The grader of zero3_unit."""

    functions: Sequence[str] = ("zero3_unit",)
    allowed: Sequence[str] = ("all_gather", "reduce_scatter", "all_reduce")
    call = staticmethod(watched)
    num_arguments = 4
    shown_by_a_pass = (
        "the shards have the gradients of the mean over the ranks; no more than two units were "
        "gathered at a time, forward and backward, and three times the parameters were sent"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Several units, many with a late rank, a single one."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: order, values, memory, traffic."""
        found = diagnosis.unlisted_operation(evidence, self.allowed)
        if found is not None:
            return found
        given, seen = given_in(evidence.case), seen_on(evidence)
        if evidence.case.altered is not None:
            return wrong_form(evidence, given, seen) or _not_from_collectives(evidence, given, seen)
        return (
            other_order(evidence, given, seen)
            or wrong_form(evidence, given, seen)
            or wrong_values(evidence, given, seen)
            or too_many_gathered(evidence, given, seen)
            or too_few_gathered(evidence, given)
            or more_traffic(evidence, given)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What the units and the collectives say of sizes."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than the three")
        refused = next((each for each in REFUSALS if each in finding.explanation), None)
        if finding.outcome is Outcome.CRASHED and refused is not None:
            return dataclasses.replace(finding, diagnosis=refused)
        if finding.outcome is Outcome.CRASHED and "equal blocks of dim 0" in finding.explanation:
            return dataclasses.replace(
                finding, diagnosis="crashes where n does not divide a unit", hint=3
            )
        return finding


def _not_from_collectives(
    evidence: CaseEvidence, given: Given, seen: Sequence[Seen]
) -> Finding | None:
    if not all_right(given, seen):
        return None
    assert evidence.case.altered is not None
    altered, _ = evidence.case.altered
    return Finding(
        Outcome.WRONG,
        "the weights do not come from the collectives",
        f"in this case one number was changed in what rank {altered} handed to its first "
        "collective, and all gradients are those of the unchanged weights",
        first_seen=evidence.label,
    )


GRADER = Zero3Unit()
