"""Which collectives a repaired training step makes: the same on every rank, and few."""

from labkit.grade.evidence import CaseEvidence
from labkit.grade.outcome import Finding, Outcome

_MOST_CALLS = 4
_NUMBER_BYTES = 8


def calls_differ(evidence: CaseEvidence) -> Finding | None:
    """Ranks that do not make the same collectives, though the run came to its end."""
    calls = [
        [(each.kind, each.group_name, each.sequence) for each in operations]
        for operations in evidence.operations
    ]
    for rank, its in enumerate(calls):
        if len(its) != len(calls[0]):
            return Finding(
                Outcome.WRONG,
                "not the same number of collectives on every rank",
                f"rank 0 makes {len(calls[0])} collectives and rank {rank} {len(its)}: from here "
                "on every collective meets another one than it should",
                first_seen=evidence.label,
                hint=2,
            )
    return None


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """More collectives, or more in them, than a step needs."""
    num_features = evidence.case.arguments[0][2].numel()
    most_bytes = (2 * num_features + 2) * _NUMBER_BYTES
    for rank, operations in enumerate(evidence.operations):
        payload_bytes = sum(operation.payload_bytes for operation in operations)
        if payload_bytes > most_bytes:
            kinds = ", ".join(f"{each.kind} of {each.payload_bytes}" for each in operations)
            return Finding(
                Outcome.OVER_BUDGET,
                "sends more than gradients",
                f"rank {rank} passes {payload_bytes} bytes to its collectives ({kinds}); two "
                f"gradients, a loss and a number of examples are {most_bytes}. What travels must "
                "not grow with the number of examples",
                first_seen=evidence.label,
                hint=1,
                where=max(operations, key=lambda each: each.payload_bytes).origin,
            )
        if len(operations) > _MOST_CALLS:
            kinds = ", ".join(operation.kind for operation in operations)
            return Finding(
                Outcome.OVER_BUDGET,
                "more collectives than needed",
                f"rank {rank} makes {len(operations)} collectives ({kinds}); {_MOST_CALLS} are "
                "enough. Each waits for the slowest rank, and a barrier beside an all_reduce adds "
                "nothing: nobody leaves an all_reduce before everyone has come to it",
                first_seen=evidence.label,
                hint=1,
            )
    return None
