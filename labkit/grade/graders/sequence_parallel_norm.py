"""sequence_parallel_norm is graded on values and gradients, on memory, and on bytes sent.

What is left to the learner: one Function or several, and how the norm is computed.
"""

import dataclasses
import random
import re
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.sequence_budget import less_traffic, more_memory, more_traffic
from labkit.grade.graders.sequence_form import OfRanks, changed_arguments, wrong_form
from labkit.grade.graders.sequence_inputs import Given, given_in, random_cases
from labkit.grade.graders.sequence_values import all_right, wrong_values
from labkit.grade.graders.sequence_watch import seen_in, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome

# What autograd says of a Function's backward.
_NO_FIT = re.compile(r"[Ff]unction \w+ returned an (incorrect number|invalid gradient).*")


class SequenceParallelNorm(OnRanks):
    """The grader of sequence_parallel_norm."""

    functions: Sequence[str] = ("sequence_parallel_norm",)
    allowed: Sequence[str] = ("reduce_scatter", "all_gather", "all_reduce")
    call = staticmethod(watched)
    num_arguments = 4
    shown_by_a_pass = (
        "residual, normalised rows and all gradients are those of one process, for rows that n "
        "divides or not; forward and backward each send what one all-reduce does, and nothing of "
        "all rows is kept in between"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Rows that n divides and others, two steps, a rank without any row, a late rank."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, values, what is left behind, traffic, memory."""
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
            or changed_arguments(evidence, seen)
            or wrong_values(evidence, given, seen)
            or less_traffic(evidence, given)
            or more_traffic(evidence, given)
            or more_memory(evidence, given, seen)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What only rows bring about that n does not divide."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than the three")
        said = _NO_FIT.search(finding.explanation)
        if finding.outcome is Outcome.CRASHED and said is not None:
            return dataclasses.replace(
                finding,
                diagnosis="a backward does not fit its forward",
                explanation="backward of a Function returns one value for each argument of its "
                "forward: a gradient of the argument's shape, and None for what is no tensor. "
                f"torch says: {said[0]}",
                details="",  # where autograd was called from, which is not the learner's
                where=None,
            )
        before = attempt.cases[: attempt.cases.index(evidence)]
        was_even = all(given_in(each.case).is_even for each in before)
        if finding.outcome is not Outcome.CRASHED or not before:
            return finding
        if was_even and not given_in(evidence.case).is_even:
            name, why = (
                "crashes where n does not divide the rows",
                "collectives take blocks of one size: pad until n divides the rows, and cut off "
                "what is left over",
            )
        elif not all(len(r_nD) for r_nD in given_in(evidence.case).steps[0].r):
            name, why = (
                "crashes where a rank has no rows",
                "there are fewer rows than ranks here: r_nD is (0, D) on the last one, which takes "
                "part in all collectives all the same",
            )
        else:
            return finding
        return dataclasses.replace(
            finding, diagnosis=name, explanation=f"{why}. {finding.explanation}", hint=3
        )


def _not_from_collectives(evidence: CaseEvidence, given: Given, seen: OfRanks) -> Finding | None:
    """Right values although what was handed over has been changed on its way."""
    assert evidence.case.altered is not None
    rank, number = evidence.case.altered
    if len(evidence.operations[rank]) < number or not all_right(evidence, given, seen):
        return None
    return Finding(
        Outcome.WRONG,
        "the rows do not come from the collectives",
        f"in this case one number was changed in what rank {rank} handed to collective {number}, "
        "and all rows and gradients are those of the unchanged ones",
        first_seen=evidence.label,
    )


GRADER = SequenceParallelNorm()
