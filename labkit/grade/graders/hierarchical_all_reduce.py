"""hierarchical_all_reduce is graded on values, and on the bytes of each tier, to the byte.

What is left to the learner: rings or direct messages within a tier, their direction, which of the
parts are the longer ones, and whether empty ones are sent.
"""

import random
from collections.abc import Sequence

from labkit.grade import diagnosis, ledger
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.hierarchical_budget import over_budget
from labkit.grade.graders.hierarchical_inputs import random_cases
from labkit.grade.graders.hierarchical_values import wrong_values
from labkit.grade.graders.ring_values import not_from_messages
from labkit.grade.graders.uneven_sizes import crashes_on_uneven
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding


class HierarchicalAllReduce(OnRanks):
    """The grader of hierarchical_all_reduce."""

    functions: Sequence[str] = ("hierarchical_all_reduce",)
    allowed: Sequence[str] = ("isend", "irecv", "send", "recv")
    # 6 first: 3 hosts of 2 and 2 hosts of 3. With two hosts, or two ranks on each, both neighbours
    # are the same one, and mistakes cancel.
    world_sizes: Sequence[int] = (6, 4, 2, 1)
    shown_by_a_pass = (
        "the values are right on any number of hosts, 2(H-1) times the tensor crosses between "
        "them and not a byte more, and all ranks carry equal parts of it"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh inputs: as a ring's, on every number of hosts."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong, values before budget."""
        x = evidence.case.arguments[0][0]
        found = diagnosis.unlisted_operation(evidence, self.allowed) or diagnosis.result_form(
            evidence, x.shape, x.dtype
        )
        if found is not None:
            return found
        if evidence.case.altered is not None:
            return over_budget(evidence) or _not_from_messages(evidence)
        return (
            wrong_values(evidence)
            or diagnosis.input_changed(evidence)
            or diagnosis.result_shares_memory(evidence)
            or diagnosis.result_returned_before(evidence)
            or ledger.disagreement(evidence)
            or over_budget(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """A crash that comes only where the ranks do not divide the size."""
        return crashes_on_uneven(finding, evidence, attempt)


def _not_from_messages(evidence: CaseEvidence) -> Finding | None:
    """As for a ring, if the message that was to be changed was received at all.

    With direct messages in place of rings there may be fewer, and larger ones.
    """
    assert evidence.case.altered is not None
    rank, number = evidence.case.altered
    received = [each for each in evidence.operations[rank] if each.kind == "recv"]
    return not_from_messages(evidence) if len(received) >= number else None


GRADER = HierarchicalAllReduce()
