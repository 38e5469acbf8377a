"""uneven_all_to_all is graded on values, and on every row being sent once, straight, unpadded.

What is left to the learner: the order of the peers, how many messages are under way at a time, and
whether empty blocks are sent.
"""

import dataclasses
import random
from collections.abc import Sequence

from labkit.grade import diagnosis, ledger
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.all_to_all_inputs import (
    Matrix,
    counts_of,
    inputs_of,
    random_cases,
    row_bytes_of,
)
from labkit.grade.graders.all_to_all_messages import over_budget
from labkit.grade.graders.all_to_all_values import not_from_messages, wrong_form, wrong_values
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome

_ANOTHER_SIZE = "receives into a buffer of another size"


class UnevenAllToAll(OnRanks):
    """The grader of uneven_all_to_all."""

    functions: Sequence[str] = ("uneven_all_to_all",)
    allowed: Sequence[str] = ("isend", "irecv", "send", "recv")
    shown_by_a_pass = (
        "every row arrives in its place, whatever the counts, zeros too; it is sent once, straight "
        "to the rank that it is for, and besides the rows a rank sends each other one number"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh inputs: counts that all differ, zeros, a favourite, dtypes, layouts, late ranks."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong, values before budget."""
        found = diagnosis.unlisted_operation(evidence, self.allowed) or wrong_form(evidence)
        if found is not None:
            return found
        if evidence.case.altered is not None:
            return not_from_messages(evidence)
        return (
            wrong_values(evidence)
            or diagnosis.input_changed(evidence)
            or diagnosis.result_shares_memory(evidence)
            or diagnosis.result_returned_before(evidence)
            or ledger.disagreement(evidence)
            or over_budget(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What the two sides took for the size of a block, and a number that never comes."""
        found, happened = None, finding.explanation
        if finding.diagnosis == _ANOTHER_SIZE:
            found = _without_a_count(evidence) or _takes_for_counts(evidence)
            happened = happened.partition(": the two do not agree")[0]
        elif finding.outcome is Outcome.HUNG:
            found = _without_a_count(evidence)
        if found is None:
            return finding
        name, explanation = found
        explanation = f"{explanation}. What happened: {happened}"
        return dataclasses.replace(finding, diagnosis=name, explanation=explanation, hint=1)


def _takes_for_counts(evidence: CaseEvidence) -> tuple[str, str] | None:
    """Blocks that are cut, or buffers that are made, as if counts were other numbers."""
    counts, n = counts_of(evidence), evidence.world_size
    equal = [[len(part) for part in x.tensor_split(n)] for x in inputs_of(evidence)]
    columns = [list(column) for column in zip(*counts, strict=True)]
    if _has_rows_of(evidence, "send", equal, instead_of=counts):
        return (
            "assumes equal splits",
            "x is cut into n blocks of nearly equal length, whatever counts says. counts[s] rows "
            "are for rank s: x.split(counts.tolist())",
        )
    if _has_rows_of(evidence, "recv", counts, instead_of=columns):
        return (
            "takes what it sends for what it receives",
            "the buffer for what comes from rank s has counts[s] rows, but that is how many go to "
            "rank s. How many come from there, only rank s knows: its own counts say so",
        )
    return None


def _has_rows_of(evidence: CaseEvidence, kind: str, theory: Matrix, *, instead_of: Matrix) -> bool:
    """Whether all blocks of a kind have the rows of a theory, and some not those that are due."""
    row_bytes, is_wrong = row_bytes_of(evidence), False
    for rank, operations in enumerate(evidence.operations):
        for each in operations:
            # Up to 8 bytes may be a number. In the first cases every row is longer.
            if each.kind != kind or each.peer is None or each.payload_bytes <= 8:
                continue
            if each.payload_bytes != theory[rank][each.peer] * row_bytes:
                return False
            is_wrong = is_wrong or theory[rank][each.peer] != instead_of[rank][each.peer]
    return is_wrong


def _without_a_count(evidence: CaseEvidence) -> tuple[str, str] | None:
    """A rank receives a number from another, which has no rows for it and sends none."""
    for source, counts in enumerate(counts_of(evidence)):
        for rank, count in enumerate(counts):
            sent = _payloads(evidence, source, "send", rank)
            received = _payloads(evidence, rank, "recv", source)
            if source != rank and count == 0 and any(received) and not any(sent):
                return (
                    "forgets ranks that get no rows",
                    f"rank {source} has no rows for rank {rank}, and does not tell it. Zero is a "
                    f"number, too: rank {rank} waits for it, since it cannot know. What may be "
                    "left out is the empty block afterwards, when both sides know that it is empty",
                )
    return None


def _payloads(evidence: CaseEvidence, rank: int, kind: str, peer: int) -> list[int]:
    operations = evidence.operations[rank]
    return [each.payload_bytes for each in operations if (each.kind, each.peer) == (kind, peer)]


GRADER = UnevenAllToAll()
