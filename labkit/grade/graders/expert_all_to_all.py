"""expert_all_to_all is graded on outputs, on bytes sent, and on calls of the experts.

What is left to the learner: how rows are sorted and put together by expert, and which of the two
collectives brings the counts.
"""

import dataclasses
import random
import re
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.expert_budget import more_calls, over_budget
from labkit.grade.graders.expert_inputs import Given, given_in, random_cases
from labkit.grade.graders.expert_theories import is_telling
from labkit.grade.graders.expert_values import not_from_collectives, wrong_form, wrong_outputs
from labkit.grade.graders.expert_watch import LIVES_ELSEWHERE, seen_on, watched
from labkit.grade.mismatch import NOT_ALL_CALL
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome

# What all_to_all says of one number for each of something, which n does not divide.
_COUNTS_CUT = re.compile(r"shape \(\d+,\) into equal blocks")


class ExpertAllToAll(OnRanks):
    """The grader of expert_all_to_all."""

    functions: Sequence[str] = ("expert_all_to_all",)
    allowed: Sequence[str] = ("all_to_all", "all_gather")
    call = staticmethod(watched)
    num_arguments = 5
    shown_by_a_pass = (
        "every token gets its own expert's output, in its own place, also where ranks have no "
        "tokens and experts none; each row travelled once there and once back, unpadded, and each "
        "expert was called once at most"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Uneven numbers, empty experts, a rank without tokens, a favourite, late ranks."""
        return random_cases(world_size, rng, is_telling)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, outputs, arguments, bytes, calls."""
        given = given_in(evidence.case)
        found = diagnosis.unlisted_operation(evidence, self.allowed) or wrong_form(evidence, given)
        if found is not None:
            return found
        seen = seen_on(evidence)
        if evidence.case.altered is not None:
            return not_from_collectives(evidence, given, seen)
        return (
            wrong_outputs(evidence, given, seen)
            or diagnosis.input_changed(evidence)
            or diagnosis.result_shares_memory(evidence)
            or over_budget(evidence, given)
            or more_calls(evidence, given, seen)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What stands behind splits that do not fit, and ranks that do not come."""
        given = given_in(evidence.case)
        name, why = (
            _of_calls(finding, evidence, given)
            or _of_splits(finding, evidence, given)
            or (finding.diagnosis, "")
        )
        explanation = f"{why}. What happened: {finding.explanation}" if why else finding.explanation
        return dataclasses.replace(finding, diagnosis=name, explanation=explanation)


def _of_calls(finding: Finding, evidence: CaseEvidence, given: Given) -> tuple[str, str] | None:
    if finding.diagnosis == "calls a library collective":
        return "calls another operation than the two", "all_to_all and all_gather are enough"
    if finding.outcome is Outcome.CRASHED and LIVES_ELSEWHERE in finding.explanation:
        return (
            "calls an expert that lives elsewhere",
            "apply takes the number of an expert among all E, and of this rank's alone: its first "
            "is rank * E / n",
        )
    if finding.diagnosis == NOT_ALL_CALL:
        gone = [rank for rank in range(evidence.world_size) if evidence.has_returned(rank)]
        if gone and not any(len(given.tokens[rank]) for rank in gone):
            return (
                "leaves where it has no tokens",
                "a rank without tokens has experts, which the others' tokens are for, and every "
                "collective takes all ranks: it sends nothing, and takes part",
            )
        return (
            "leaves out a collective where there is nothing to send",
            "whether there is anything to send depends on the rank, and a collective takes all: "
            "with nothing to send its splits are zeros",
        )
    return None


def _of_splits(finding: Finding, evidence: CaseEvidence, given: Given) -> tuple[str, str] | None:
    text = finding.explanation
    if finding.outcome is Outcome.CRASHED and _COUNTS_CUT.search(text):
        return (
            "forgets experts that nobody chose",
            "what is cut here is one number for each expert, and n divides E: bincount leaves out "
            "the last experts where nobody has chosen them, unless minlength=E says how many "
            "there are",
        )
    if finding.outcome is Outcome.CRASHED and "into equal blocks" in text:
        return (
            "assumes equal splits",
            "without splits all_to_all cuts n equal blocks; how many rows are for each rank, "
            "expert_T says, and how many come from each, the others' counts",
        )
    if finding.outcome is Outcome.CRASHED and "add up to" in text and "splits=" in text:
        return (
            "sends back with the splits of the way there",
            "what a rank sends back to rank s is what came from there: on the way back the two "
            "splits change places",
        )
    if finding.diagnosis != "ranks expect different numbers of rows":
        return None
    posted = [
        each.splits for operations in evidence.operations for each in operations if each.splits
    ]
    uneven = [each for each in posted if len({*each[0], *each[1]}) > 1]
    if uneven and all(sends == receives for sends, receives in uneven):
        return (
            "takes what it sends for what it receives",
            "recv_splits are this rank's own counts. How many rows come from rank s, only rank s "
            "knows: exchange the counts first",
        )
    return None


GRADER = ExpertAllToAll()
