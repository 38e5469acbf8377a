"""top_k_capacity is graded on choices, slots, weights, and the gradient of the logits.

What is left to the learner: loops or running sums, and how a token finds its slot.
"""

import random
from collections.abc import Sequence

from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.capacity_inputs import given_in, random_cases
from labkit.grade.graders.capacity_values import (
    changed_input,
    wrong_form,
    wrong_gradient,
    wrong_values,
)
from labkit.grade.graders.capacity_watch import seen_in, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding


class TopKCapacity(OnRanks):
    """The grader of top_k_capacity."""

    functions: Sequence[str] = ("top_k_capacity",)
    allowed: Sequence[str] = ()
    world_sizes: Sequence[int] = (1,)
    call = staticmethod(watched)
    num_arguments = 5
    shown_by_a_pass = (
        "experts, slots, drops and weights are those of the contract, with k from 1 to E, biases "
        "and capacities above and below what comes, and the router gets its gradient through the "
        "weights alone"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Drops, a popular expert, k of 1 and of E, large logits, float32."""
        return random_cases(rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, values, gradient, arguments."""
        given = given_in(evidence.case)
        found = wrong_form(evidence, given)
        if found is not None:
            return found
        seen = seen_in(evidence.completed[0].outputs)
        return (
            wrong_values(evidence, given, seen)
            or changed_input(evidence, seen)
            or wrong_gradient(evidence, given, seen)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Names from the evidence need no other cases."""
        return finding


GRADER = TopKCapacity()
