"""What `exchange` sends and leaves behind, and whether its results came over the wire."""

from collections.abc import Sequence

import torch

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.top_k_compressed import Step, steps_of
from labkit.grade.graders.top_k_inputs import gradients_of, k_of
from labkit.grade.graders.top_k_means import total_of
from labkit.grade.outcome import Finding, Outcome

_MOST_CALLS = 2
_PLACE_BYTES = 8


def nothing_sent(evidence: CaseEvidence) -> Finding | None:
    """A rank that calls no collective at all, and is not alone."""
    if evidence.world_size == 1 or all(evidence.operations):
        return None
    return Finding(
        Outcome.WRONG,
        "nothing is sent",
        "no rank can know what the others have chosen: gather places and values from all",
        first_seen=evidence.label,
        hint=1,
    )


def changed_arguments(steps: Sequence[Step], label: str) -> Finding | None:
    """Indices or values that exchange has not left alone."""
    for rank, step in enumerate(steps):
        pairs = (
            ("indices", step.indices, step.indices_after),
            ("values", step.values, step.values_after),
        )
        for name, before, after in pairs:
            if not torch.equal(before, after):
                return Finding(
                    Outcome.WRONG,
                    "exchange changes what it is given",
                    f"{name} are not what they were before the call. values /= n writes to the "
                    "caller's tensor, values / n does not: in a training loop they may be needed "
                    "once more, for the debt or for a log",
                    first_seen=f"{label}: rank {rank}",
                    hint=3,
                )
    return None


def not_from_collectives(evidence: CaseEvidence) -> Finding | None:
    """Means that are right although what a rank passes to a collective was changed, or None."""
    assert evidence.case.altered is not None
    altered, number = evidence.case.altered
    steps = steps_of(evidence)
    for rank in range(evidence.world_size):
        is_right = all(torch.equal(step[rank].mean, total_of(step) / len(step)) for step in steps)
        # A rank may take its own entries from where it has them.
        if rank != altered and is_right:
            return Finding(
                Outcome.WRONG,
                "the result does not come from the collectives",
                f"one was added to the first number that rank {altered} passes to all_gather "
                f"number {number}, and the means on rank {rank} are what they would be without: "
                "what it knows of the others came in another way",
                first_seen=evidence.label,
                hint=1,
            )
    return None


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """More collectives, or more in them, than places and values."""
    gradients, k = gradients_of(evidence)[0], k_of(evidence)
    num_steps, numel = gradients.shape
    most = num_steps * k * (_PLACE_BYTES + gradients.element_size())
    for rank, operations in enumerate(evidence.operations):
        passed = sum(operation.payload_bytes for operation in operations)
        name = ""
        longest = max((each.payload_bytes for each in operations), default=0)
        if passed > most and longest >= numel * gradients.element_size():
            name = "sends the whole gradient"
            why = f"{k} of {numel} entries matter, and zeros cost as many bytes as other numbers"
        elif passed > most:
            name = "sends more than places and values"
            why = "what a rank has to tell are k places and k values, once"
        elif len(operations) > _MOST_CALLS * num_steps:
            name = "more collectives than two per step"
            why = "each costs its latencies, however short it is"
        if name:
            return Finding(
                Outcome.OVER_BUDGET,
                name,
                f"{why}. In {num_steps} steps rank {rank} passes {passed:,} bytes to "
                f"{len(operations)} all_gathers; the budget is {most:,} bytes and "
                f"{_MOST_CALLS * num_steps}",
                first_seen=evidence.label,
                hint=1,
                where=max(operations, key=lambda each: each.payload_bytes).origin,
            )
    return None
