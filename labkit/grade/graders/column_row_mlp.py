"""column_row_mlp is graded on the output, on all gradients, and on two all-reduces.

What is left to the learner: a Function, hooks, or whatever else makes backward communicate.
"""

import dataclasses
import random
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.column_row_budget import less_communication, more_communication
from labkit.grade.graders.column_row_inputs import Given, given_in, random_cases
from labkit.grade.graders.column_row_values import changed_arguments, wrong_values
from labkit.grade.graders.column_row_watch import Seen, Told, seen_on, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome


class ColumnRowMLP(OnRanks):
    """The grader of column_row_mlp."""

    functions: Sequence[str] = ("column_row_mlp",)
    allowed: Sequence[str] = ("all_reduce", "all_gather")
    call = staticmethod(watched)
    num_arguments = 6
    shown_by_a_pass = (
        "output and gradients are those of one process with the whole MLP, for any number of "
        "features, and beside a residual; there is one all-reduce forward, one backward, and "
        "nothing between the layers"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Features that divide and others, fewer features than ranks, a late rank."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: values, communication."""
        found = diagnosis.unlisted_operation(evidence, self.allowed) or _wrong_form(evidence)
        if found is not None:
            return found
        given, seen = given_in(evidence.case), seen_on(evidence)
        if evidence.case.altered is not None:
            return _not_from_collectives(evidence, given, seen)
        return (
            changed_arguments(evidence, seen)
            or wrong_values(evidence, given, seen)
            or more_communication(evidence, given)
            or less_communication(evidence, given)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What stands behind a run that did not come to its end."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than the two")
        if evidence.completed or finding.diagnosis == "calls the answer itself":
            return finding
        if "modified by an inplace operation" in finding.explanation:
            return dataclasses.replace(
                finding,
                diagnosis="writes over a tensor that backward needs",
                explanation="autograd has kept a tensor, by reference, and it has other values "
                f"when backward comes to it. Write to a new one. {finding.explanation}",
            )
        return _renamed(finding, evidence, attempt)


def _wrong_form(evidence: CaseEvidence) -> Finding | None:
    """Something else than y, on the first rank that returned it."""
    x = evidence.case.arguments[0][0]
    ranks = range(evidence.world_size)
    records = [(rank, evidence.records[rank]) for rank in ranks]
    for rank, record in records:
        if record is None or not record.returned or record.output_type == Told.__name__:
            continue
        # Whichever rank it is: those that wait for it have no record.
        of_one = dataclasses.replace(evidence, records=(record,))
        found = diagnosis.result_form(of_one, x.shape, x.dtype)
        if found is not None:
            return dataclasses.replace(found, first_seen=f"{evidence.label}: rank {rank}")
    return None


def _renamed(finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
    """Where one rank did not come as far as the others, and why."""
    found = _wrong_form(evidence)
    if found is not None:
        return found
    empty = [rank for rank, each in enumerate(evidence.case.arguments) if not each[1].numel()]
    before = attempt.cases[: attempt.cases.index(evidence)]
    if not empty or len(before) < len(attempt.cases) - 1:
        return finding
    is_crash = finding.outcome is Outcome.CRASHED and "raises" in finding.diagnosis
    return dataclasses.replace(
        finding,
        diagnosis="crashes on a rank without features"
        if is_crash
        else "a rank without features leaves the others waiting",
        explanation=f"rank {empty[0]} has shares with no features. What it adds to y is zero, and "
        "so is what it says of x, and it takes part in both all-reduces like all others: its x has "
        f"to be in the graph of y as well. {finding.explanation}",
        hint=3,
    )


def _not_from_collectives(
    evidence: CaseEvidence, given: Given, seen: Sequence[Seen]
) -> Finding | None:
    """Right values although what was summed has been changed on its way."""
    assert evidence.case.altered is not None
    rank, number = evidence.case.altered
    if len(evidence.operations[rank]) < number or wrong_values(evidence, given, seen) is not None:
        return None
    return Finding(
        Outcome.WRONG,
        "y and its gradient do not come from the collectives",
        f"in this case one number was changed in what rank {rank} handed to collective {number}, "
        "and y and all gradients are those of the unchanged ones",
        first_seen=evidence.label,
    )


GRADER = ColumnRowMLP()
