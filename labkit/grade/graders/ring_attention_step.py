"""ring_attention_step is graded on outputs, messages, their order, memory, and what is computed.

What is left to the learner: whether keys and values travel in one message, how blocks are merged,
and whether a block is sent on where nobody further on needs it.
"""

import dataclasses
import random
from collections.abc import Sequence

from labkit.grade import diagnosis, ledger
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.context_budget import computes_outside, more_computed, more_memory
from labkit.grade.graders.context_inputs import given_in, random_cases
from labkit.grade.graders.context_messages import over_budget
from labkit.grade.graders.context_order import not_overlapped
from labkit.grade.graders.context_values import (
    input_changed,
    not_from_messages,
    wrong_form,
    wrong_values,
)
from labkit.grade.graders.context_watch import seen_on, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding


class RingAttentionStep(OnRanks):
    """The grader of ring_attention_step."""

    functions: Sequence[str] = ("ring_attention",)
    allowed: Sequence[str] = ("isend", "irecv", "send", "recv")
    # 4 first: with fewer, all blocks together are hardly more than a rank may have.
    world_sizes: Sequence[int] = (4, 3, 2, 1)
    call = staticmethod(watched)
    num_arguments = 5
    shown_by_a_pass = (
        "each rank's output is that of causal attention over the whole sequence; blocks went to "
        "the right while the rank computed with them, two at most were in memory besides its own, "
        "and none was computed that lies wholly after its share"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Equal shares, unequal ones, large scores, a late rank, a message that is changed."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, values, messages, memory, order, products."""
        given = given_in(evidence.case)
        found = diagnosis.unlisted_operation(evidence, self.allowed) or wrong_form(evidence, given)
        if found is not None:
            return found
        seen = seen_on(evidence)
        if evidence.case.altered is not None:
            return not_from_messages(evidence, given, seen)
        return (
            wrong_values(evidence, given, seen)
            or input_changed(evidence)
            or ledger.disagreement(evidence)
            or over_budget(evidence, given)
            or more_memory(evidence, given, seen)
            or computes_outside(evidence, given)
            or not_overlapped(evidence, given)
            or more_computed(evidence, given)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """A crash that only unequal shares bring about."""
        before = attempt.cases[: attempt.cases.index(evidence)]
        is_uneven = len(set(given_in(evidence.case).sizes)) > 1
        was_even = all(len(set(given_in(each.case).sizes)) == 1 for each in before)
        has_crashed = finding.diagnosis.startswith(("raises ", "its process ended"))
        if has_crashed and before and is_uneven and was_even:
            return dataclasses.replace(
                finding,
                diagnosis="crashes where n does not divide the sequence",
                explanation="it works where all shares are equal, and fails where they cannot be: "
                "the block that comes may be longer or shorter than the one in hand. "
                f"{finding.explanation}",
                hint=3,
            )
        return finding


GRADER = RingAttentionStep()
