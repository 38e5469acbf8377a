"""A crash that only sizes bring about which the ranks do not divide."""

import dataclasses

from labkit.grade.evidence import Attempt, CaseEvidence
from labkit.grade.outcome import Finding


def crashes_on_uneven(finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
    """The finding by another name, if it is a crash and all sizes before could be divided."""
    n = attempt.world_size
    before = attempt.cases[: attempt.cases.index(evidence)]
    is_uneven = evidence.case.arguments[0][0].numel() % n > 0
    was_even = all(case.case.arguments[0][0].numel() % n == 0 for case in before)
    has_crashed = finding.diagnosis.startswith(("raises ", "its process ended"))
    if before and is_uneven and was_even and has_crashed:
        return dataclasses.replace(
            finding,
            diagnosis="crashes where n does not divide the size",
            explanation="it works where all parts are equal, and fails where they cannot be. "
            f"torch.tensor_split cuts any size into n parts. {finding.explanation}",
            hint=3,
        )
    return finding
