"""Hooks that code under test leaves on a module or its parameters."""

from collections.abc import Sequence

from labkit.grade.evidence import CaseEvidence
from labkit.grade.outcome import Finding, Outcome


def hooks_left(evidence: CaseEvidence, num_hooks: Sequence[int]) -> Finding | None:
    """Hooks that were not there before. `num_hooks`: by rank."""
    for rank, number in enumerate(num_hooks):
        if number > 0:
            return Finding(
                Outcome.WRONG,
                "leaves its hooks behind",
                f"{number} hooks are still there: in the next step there would be new ones beside "
                "them, and each gradient would be reduced twice, then three times. A hook's handle "
                "has remove()",
                first_seen=f"{evidence.label}: rank {rank}",
                hint=3,
            )
    return None
