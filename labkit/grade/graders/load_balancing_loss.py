"""load_balancing_loss is graded on two values, and on the gradient of each.

What is left to the learner: how choices are counted, and how a log-sum-exp is kept from overflow.
"""

import random
from collections.abc import Sequence

from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.load_inputs import given_in, random_cases
from labkit.grade.graders.load_values import changed_input, wrong_form, wrong_values
from labkit.grade.graders.load_watch import seen_in, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding


class LoadBalancingLoss(OnRanks):
    """The grader of load_balancing_loss."""

    functions: Sequence[str] = ("load_balancing_loss",)
    allowed: Sequence[str] = ()
    world_sizes: Sequence[int] = (1,)
    call = staticmethod(watched)
    num_arguments = 3
    shown_by_a_pass = (
        "both losses and their gradients are those of the formulas, for k from 1 to E, with "
        "dropped choices, in perfect balance and in collapse, and with logits of 1,000"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Drops, k of 1 and of E, balance, collapse, large logits, float32."""
        return random_cases(rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, values and gradients, arguments."""
        given = given_in(evidence.case)
        found = wrong_form(evidence, given)
        if found is not None:
            return found
        seen = seen_in(evidence.completed[0].outputs)
        return wrong_values(evidence, given, seen) or changed_input(evidence, seen)

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Names from the evidence need no other cases."""
        return finding


GRADER = LoadBalancingLoss()
