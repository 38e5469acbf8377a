"""loss_scaler is graded on steps of real ranks: who steps, with what, and the scale that follows.

The scale that the code leaves behind is the one that the next backward is made with, so that a
wrong one shows in what overflows later.
"""

import dataclasses
import random
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.scaler_inputs import has_rank_without_gradients, random_cases
from labkit.grade.graders.scaler_traces import over_budget, renamed, wrong_trace
from labkit.grade.graders.scaler_training import training
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome


class LossScaler(OnRanks):
    """The grader of loss_scaler."""

    functions: Sequence[str] = ("scaled_step",)
    # A label only names operations; labkit's own scaler has one, and is told apart by it.
    allowed: Sequence[str] = ("all_reduce", "label")
    world_sizes: Sequence[int] = (2, 3, 1)
    call = staticmethod(training)
    num_arguments = 4
    shown_by_a_pass = (
        "steps with an inf or a nan on any rank are skipped on all, the scale finds its height "
        "from above and from below, and what reaches the optimizer has lost no digit to it"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh gradients: fine ones, overflows on all ranks and on one, a rank without any."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong, steps before budget."""
        return (
            diagnosis.unlisted_operation(evidence, self.allowed)
            or wrong_trace(evidence)
            or over_budget(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What fits the cases before, too; and what only a rank without gradients brings about."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than all_reduce")
        if evidence.completed:
            return renamed(finding, evidence, attempt)
        if not has_rank_without_gradients(evidence.case):
            return finding
        is_crash = finding.outcome is Outcome.CRASHED
        return dataclasses.replace(
            finding,
            diagnosis="crashes on a rank without gradients"
            if is_crash
            else "a rank without gradients leaves the others waiting",
            explanation="a rank with an empty list has nothing that could overflow, and takes part "
            f"like all others: the rest of them wait for its flag. {finding.explanation}",
            hint=3,
        )


GRADER = LossScaler()
