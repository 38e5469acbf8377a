"""What gradients cost on the wire, and whether the results came over it."""

from collections.abc import Sequence

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.gradient_values import Gradients, Left, is_close
from labkit.grade.outcome import Finding, Outcome


def not_from_collectives(
    evidence: CaseEvidence, left: Sequence[Left], unaltered: Gradients
) -> Finding | None:
    """Gradients that are right although what travelled was changed on its way."""
    for rank, each in enumerate(left):
        if all(is_close(each.gradients[name], value) for name, value in unaltered.items()):
            assert evidence.case.altered is not None
            altered, _ = evidence.case.altered
            return Finding(
                Outcome.WRONG,
                "the gradients do not come from the collectives",
                f"in this case one number was changed in what rank {altered} handed to its first "
                f"all-reduce, and rank {rank} has the means of the unchanged ones all the same: it "
                "does not use what it receives",
                first_seen=evidence.label,
            )
    return None


def more_than_gradients(evidence: CaseEvidence, nbytes: Sequence[int]) -> Finding | None:
    """More all-reduces than gradients, or more bytes in them. `nbytes`: of each gradient."""
    for rank, operations in enumerate(evidence.operations):
        payload_bytes = sum(each.payload_bytes for each in operations)
        if len(operations) > len(nbytes) or payload_bytes > sum(nbytes):
            return Finding(
                Outcome.OVER_BUDGET,
                "communicates more than the gradients",
                f"rank {rank} makes {len(operations)} all-reduces of {payload_bytes} bytes in all; "
                f"there are {len(nbytes)} gradients of {sum(nbytes)} bytes, and each travels once",
                first_seen=evidence.label,
                hint=2,
                where=operations[-1].origin,
            )
    return None
