"""online_softmax is graded on output and log-sum-exp, on blocks and bytes in memory, on one pass.

What is left to the learner: how blocks are merged (running maximum and sum, or log-sum-exps), and
how a query that has seen nothing is told apart.
"""

import random
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.softmax_budget import (
    computes_outside,
    keeps_blocks,
    more_bytes,
    other_passes,
)
from labkit.grade.graders.softmax_inputs import given_in, random_cases
from labkit.grade.graders.softmax_values import wrong_form, wrong_values
from labkit.grade.graders.softmax_watch import seen_in, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding


class OnlineSoftmax(OnRanks):
    """The grader of online_softmax."""

    functions: Sequence[str] = ("online_softmax",)
    allowed: Sequence[str] = ()
    world_sizes: Sequence[int] = (1,)
    call = staticmethod(watched)
    num_arguments = 3
    shown_by_a_pass = (
        "output and log-sum-exp are those of all keys at once, with scores of 10,000 in float32 "
        "and with blocks that are wholly masked; each block was seen once, and never more than "
        "one block's scores were kept"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """One block, several, masks, blocks and queries that see nothing, large scores, many."""
        return random_cases(rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, passes, values, torch's part, memory."""
        given = given_in(evidence.case)
        found = wrong_form(evidence, given)
        if found is not None:
            return found
        seen = seen_in(evidence.completed[0].outputs)
        return (
            other_passes(evidence, given, seen)
            or wrong_values(evidence, given, seen)
            or diagnosis.input_changed(evidence)
            or computes_outside(evidence, given, seen)
            or keeps_blocks(evidence, given, seen)
            or more_bytes(evidence, given, seen)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Names from the evidence need no other cases."""
        return finding


GRADER = OnlineSoftmax()
