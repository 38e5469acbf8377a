"""vocab_cross_entropy is graded on loss and gradient, on what travels, and on its tensors' sizes.

What is left to the learner: in how many collectives, up to three, and whether autograd helps.
"""

import dataclasses
import random
import re
from collections.abc import Sequence

from labkit.comm.operation import Operation
from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.vocab_budget import (
    is_of_extremes,
    larger_tensors,
    less_traffic,
    more_traffic,
)
from labkit.grade.graders.vocab_inputs import Given, Seen, given_in, random_cases, seen_in, watched
from labkit.grade.graders.vocab_values import (
    are_right,
    changed_arguments,
    wrong_form,
    wrong_values,
)
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome

# What torch says of a number that is no column: indexing, gather, one_hot, nll_loss.
_NO_COLUMN = re.compile(r"out of bounds|out of range|Class values must be|is invalid for")


class VocabCrossEntropy(OnRanks):
    """The grader of vocab_cross_entropy."""

    functions: Sequence[str] = ("vocab_cross_entropy",)
    allowed: Sequence[str] = ("all_reduce", "all_gather")
    call = staticmethod(watched)
    num_arguments = 4
    shown_by_a_pass = (
        "loss and gradient are those of one process with all the logits, for large ones, in three "
        "dtypes and with empty shares; three numbers for each position travelled at most, and no "
        "tensor was longer than a share"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Plain logits, large ones, three dtypes, empty shares, a late rank."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, values, traffic, sizes."""
        found = diagnosis.unlisted_operation(evidence, self.allowed)
        if found is not None:
            return found
        given = given_in(evidence.case)
        seen = [seen_in(record.outputs) for record in evidence.completed]
        found = wrong_form(evidence, given, seen)
        if found is None and evidence.case.altered is not None:
            return _not_from_collectives(evidence, given, seen)
        return (
            found
            or changed_arguments(evidence)
            or wrong_values(evidence, given, seen)
            or less_traffic(evidence, given)
            or more_traffic(evidence, given)
            or larger_tensors(evidence, given, seen)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What torch's messages stand for, and what only an empty share brings about."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than the two")
        if finding.outcome is not Outcome.CRASHED:
            return finding
        if not all(share.shape[1] for share in given_in(evidence.case).shares):
            return dataclasses.replace(
                finding,
                diagnosis="crashes where a share is empty",
                explanation="there are fewer tokens than ranks here, and a share of (N, 0) has no "
                f"maximum and no column. {finding.explanation}",
                hint=3,
            )
        if attempt.world_size > 1 and _NO_COLUMN.search(finding.explanation):
            return dataclasses.replace(
                finding,
                diagnosis="looks up a target that is not in the share",
                explanation="targets are numbers in the whole vocabulary: target - first is the "
                f"column, where that is one of this rank's. {finding.explanation}",
                hint=3,
            )
        return finding


def _not_from_collectives(
    evidence: CaseEvidence, given: Given, seen: Sequence[Seen]
) -> Finding | None:
    """Right values although what was added up, or gathered, has been changed on its way."""
    assert evidence.case.altered is not None
    rank, number = evidence.case.altered
    operations = evidence.operations[rank]
    if len(operations) < number or _may_be_maxima(operations, number - 1):
        return None  # softmax is the same whatever is taken off
    if not are_right(given, seen):
        return None
    return Finding(
        Outcome.WRONG,
        "the loss does not come from the collectives",
        f"in this case one number was changed in what rank {rank} handed to collective {number}, "
        "and loss and gradients are those of the unchanged logits on all ranks",
        first_seen=evidence.label,
    )


def _may_be_maxima(operations: Sequence[Operation], index: int) -> bool:
    """Also those that are gathered; what comes last of sums and gathers is more than that."""
    if is_of_extremes(operations[index]):
        return True
    after = [each for each in operations[index + 1 :] if not is_of_extremes(each)]
    return operations[index].kind == "all_gather" and bool(after)


GRADER = VocabCrossEntropy()
