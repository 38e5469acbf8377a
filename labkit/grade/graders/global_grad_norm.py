"""global_grad_norm is graded on the norm, on the gradients that are left, and on what is sent.

What is left to the learner: over which groups the sum goes, in how many steps, and which of several
ranks with the same gradient counts it.
"""

import dataclasses
import random
import re
from collections.abc import Sequence

from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.norm_budget import operations_of, over_budget
from labkit.grade.graders.norm_inputs import given_in, random_cases
from labkit.grade.graders.norm_values import (
    is_right_everywhere,
    not_from_collectives,
    wrong_form,
    wrong_gradients,
    wrong_norm,
)
from labkit.grade.graders.norm_watch import clipped, seen_on
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome

# What torch and Python say where a tensor is expected, and .grad is None.
_NO_GRADIENT = re.compile(r"'?NoneType'?")
# What torch says of the largest of no numbers.
_NO_NUMBERS = re.compile(r"numel\(\) == 0")


class GlobalGradNorm(OnRanks):
    """The grader of global_grad_norm."""

    functions: Sequence[str] = ("global_grad_norm",)
    allowed: Sequence[str] = ("all_reduce",)
    # 4 first: two axes at a time. 8 has all three.
    world_sizes: Sequence[int] = (4, 8, 3, 1)
    call = staticmethod(clipped)
    num_arguments = 3
    shown_by_a_pass = (
        "on every mesh each number of the gradient counts once, whether it is sharded, copied, "
        "averaged or tied; all ranks clip by the same norm, and send 8 bytes for it at a time"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Meshes of every kind, gradients that are absent or extreme, a late rank."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: operations, form, norm, gradients, traffic."""
        found = _unlisted(evidence)
        if found is not None:
            return found
        given, seen = given_in(evidence.case), seen_on(evidence)
        found = wrong_form(evidence, seen)
        if found is None and evidence.case.altered is not None:
            if is_right_everywhere(given, seen):
                return not_from_collectives(evidence, given, seen)
            return over_budget(evidence)
        return (
            found
            or wrong_norm(evidence, given, seen)
            or wrong_gradients(evidence, given, seen)
            or over_budget(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Here one collective is allowed; and some parameters have no gradient."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than all_reduce")
        is_crash = finding.outcome is Outcome.CRASHED
        if is_crash and _NO_GRADIENT.search(finding.explanation):
            return dataclasses.replace(
                finding,
                diagnosis="forgets parameters without a gradient",
                explanation="a parameter that backward did not reach has grad None: it counts "
                f"nothing. {finding.explanation}",
                hint=3,
            )
        if is_crash and _NO_NUMBERS.search(finding.explanation):
            return dataclasses.replace(
                finding,
                diagnosis="forgets gradients without numbers",
                explanation="where an axis has more ranks than a matrix rows, a shard has none: "
                f"its gradient is there, and adds nothing. {finding.explanation}",
                hint=3,
            )
        return finding


def _unlisted(evidence: CaseEvidence) -> Finding | None:
    """An operation in a journal that the exercise does not allow, however it got there."""
    for rank in range(evidence.world_size):
        for operation in operations_of(evidence, rank):
            if operation.kind != "all_reduce":
                return Finding(
                    Outcome.WRONG,
                    "calls a library collective",
                    f"the journal of rank {rank} has {operation.name} in it; this exercise is "
                    "written with all_reduce and nothing else",
                    first_seen=evidence.label,
                    where=operation.origin,
                )
    return None


GRADER = GlobalGradNorm()
