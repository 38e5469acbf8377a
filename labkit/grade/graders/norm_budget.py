"""What a global norm sends: numbers, and no gradients."""

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.outcome import Finding, Outcome

_NUMBER_BYTES = 8
_MOST = 6  # a maximum and a sum along each of three axes


def operations_of(evidence: CaseEvidence, rank: int) -> list[Operation]:
    """Those of the code under test: groups are split by the grader."""
    return [each for each in evidence.operations[rank] if each.kind != "split"]


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """More than a number in a collective, or more of those than axes need."""
    for rank in range(evidence.world_size):
        operations = operations_of(evidence, rank)
        large = [each for each in operations if each.payload_bytes > _NUMBER_BYTES]
        if large:
            payload_bytes = large[0].payload_bytes
            return _finding(
                evidence,
                "sends gradients" if payload_bytes > 64 else "sends more than one number",
                f"the norm is right, and rank {rank} hands {payload_bytes:,} bytes to a "
                "collective. A rank's squares are one number by the time they travel, 8 bytes in "
                "float64",
                large[0],
            )
        if len(operations) > _MOST:
            return _finding(
                evidence,
                "calls a collective for each parameter",
                f"the norm is right, and rank {rank} calls {len(operations)} collectives, where "
                f"one is enough, and {_MOST} are allowed: each costs a latency, whatever its size. "
                "Add up on the rank first",
                operations[_MOST],
            )
    return None


def _finding(evidence: CaseEvidence, name: str, why: str, operation: Operation) -> Finding:
    return Finding(Outcome.OVER_BUDGET, name, why, evidence.label, 1, operation.origin)
