"""ring_all_reduce is graded on values, on 2(n-1) sends of one nth each, and on doing it itself.

What is left to the learner, because the contract does not depend on it: the direction around the
ring, which segment comes first, which of the n segments are the longer ones, and whether empty
segments are sent.
"""

import random
from collections.abc import Sequence

from labkit.grade import diagnosis, ledger
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.ring_inputs import random_cases
from labkit.grade.graders.ring_messages import over_budget
from labkit.grade.graders.ring_values import not_from_messages, wrong_values
from labkit.grade.graders.uneven_sizes import crashes_on_uneven
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding


class RingAllReduce(OnRanks):
    """The grader of ring_all_reduce."""

    functions: Sequence[str] = ("ring_all_reduce",)
    allowed: Sequence[str] = ("isend", "irecv", "send", "recv")
    shown_by_a_pass = (
        "the values are right, every rank sends 2(n-1) messages of one nth each, and no library "
        "collective does the work"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh inputs: sizes that divide and that do not, 0 and 1, dtypes, layouts, late ranks."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong, values before budget: a fast wrong answer is worth nothing."""
        x = evidence.case.arguments[0][0]
        if evidence.case.altered is not None:
            return not_from_messages(evidence)
        return (
            diagnosis.unlisted_operation(evidence, self.allowed)
            or diagnosis.result_form(evidence, x.shape, x.dtype)
            or wrong_values(evidence)
            or diagnosis.input_changed(evidence)
            or diagnosis.result_shares_memory(evidence)
            or diagnosis.result_returned_before(evidence)
            or ledger.disagreement(evidence)
            or over_budget(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """A crash that comes only where n does not divide the size."""
        return crashes_on_uneven(finding, evidence, attempt)


GRADER = RingAllReduce()
