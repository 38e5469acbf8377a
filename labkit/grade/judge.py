"""From the evidence of a launch to the first thing that is wrong with it, in the driver.

Rules before results, results before budget; and the first case that shows anything decides, since a
case that went wrong may spoil the next ones (messages left over from it).
"""

import dataclasses
from typing import Protocol

from labkit.grade import diagnosis, ledger
from labkit.grade.crash import explain_crash
from labkit.grade.evidence import Attempt, CaseEvidence
from labkit.grade.hang import OF_A_BUSY_MACHINE, explain_hang
from labkit.grade.mismatch import explain_mismatch
from labkit.grade.outcome import Finding, Outcome
from labkit.launch.errors import Mismatch, RankError

_PRINTED_LINES = 10


class Judge(Protocol):
    """What an exercise knows besides (on_ranks.py)."""

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The mistake in a case that every rank came back from, or None."""

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """A better name for a mistake, in the light of the cases before it; or `finding`."""


def judge(attempt: Attempt, grader: Judge) -> Finding | None:
    """The mistake that the evidence shows first; None where there is none."""
    for evidence in attempt.cases:
        finding = diagnosis.broken_rule(evidence) or ledger.size_mismatch(
            evidence, _outcome_of(attempt, evidence)
        )
        if finding is None and evidence.completed:
            finding = grader.judge(evidence)
            if finding is not None and evidence.case.altered is not None:
                finding = ledger.hidden_bytes(attempt) or finding  # where else they came from
        elif finding is None:
            finding = _failure(attempt, evidence)
        if finding is not None:
            if finding.diagnosis not in OF_A_BUSY_MACHINE:
                finding = grader.refine(finding, evidence, attempt)
            return dataclasses.replace(finding, printed=_printed(evidence))
    if attempt.failure is not None:  # after the last case
        return _failure(attempt, attempt.cases[-1])
    return ledger.hidden_bytes(attempt)


def _failure(attempt: Attempt, evidence: CaseEvidence) -> Finding:
    """Why not every rank came back from this case."""
    if attempt.failure is None:
        raise AssertionError(f"no rank failed, yet a record is missing: {evidence.label}")
    has_begun = _has_begun(attempt)
    if isinstance(attempt.failure, RankError):
        return explain_crash(attempt.failure, evidence.label if has_begun else "")
    if isinstance(attempt.failure, Mismatch):
        return explain_mismatch(evidence, attempt.failure)
    return explain_hang(attempt, evidence if has_begun else None, attempt.failure)


def _outcome_of(attempt: Attempt, evidence: CaseEvidence) -> Outcome:
    """How a case with something wrong in it has ended."""
    if evidence.completed:
        return Outcome.WRONG
    return Outcome.CRASHED if isinstance(attempt.failure, RankError | Mismatch) else Outcome.HUNG


def _has_begun(attempt: Attempt) -> bool:
    """Whether any rank has entered a case; before that, the code under test is being loaded."""
    assert attempt.failure is not None
    return any(timeline.regions for timeline in attempt.failure.timeline)


def _printed(evidence: CaseEvidence) -> str:
    """The end of what the ranks printed during the case."""
    lines = [
        f"[rank {rank}] {line}"
        for rank, text in enumerate(evidence.printed)
        for line in text.splitlines()[-_PRINTED_LINES:]
    ]
    return "\n".join(lines)
