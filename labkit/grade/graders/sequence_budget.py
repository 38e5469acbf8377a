"""What the norm between two layers may send, and how many tensors of all rows it may have."""

import math

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.sequence_form import OfRanks
from labkit.grade.graders.sequence_inputs import Given, Step
from labkit.grade.graders.sequence_long import MOST_LONG
from labkit.grade.graders.sequence_watch import BACKWARD, FORWARD, operations_of
from labkit.grade.graders.shard_wire import ring_bytes
from labkit.grade.outcome import Finding, Outcome

_ITEMSIZE = 8


def more_memory(evidence: CaseEvidence, given: Given, seen: OfRanks) -> Finding | None:
    """A tensor of all rows that stays for backward, or too many of them at once."""
    for rank, its in enumerate(seen):
        for step, each in zip(given.steps, its, strict=True):
            num_bytes = step.z[0].nbytes
            if each.num_kept:
                name, why = (
                    "keeps all rows for backward",
                    f"the values are right, and after forward there {_are(each.num_kept)} of all "
                    f"{step.num_rows} rows, {num_bytes:,} bytes each, besides z_ND and x_ND. The "
                    "norm needs this rank's rows of its input for backward: normalise these, and "
                    "gather then. A slice keeps all of the tensor that it is a slice of",
                )
            elif max(each.most) > MOST_LONG:
                name, why = (
                    "has too many tensors of all rows at once",
                    f"the values are right, and at one moment there {_are(max(each.most))} of all "
                    f"{step.num_rows} rows, besides what is passed: what travels and what arrives "
                    f"are {MOST_LONG}. A name in a function keeps a tensor until the end of it",
                )
            else:
                continue
            first_seen = f"{evidence.label}: rank {rank}"
            return Finding(Outcome.OVER_BUDGET, name, why, first_seen, hint=1)
    return None


def _are(num_tensors: int) -> str:
    return "is one tensor" if num_tensors == 1 else f"are {num_tensors} tensors"


def more_traffic(evidence: CaseEvidence, given: Given) -> Finding | None:
    """More than a reduce_scatter and an all_gather, forward or backward."""
    n = evidence.world_size
    for rank in range(n):
        for name in (FORWARD, BACKWARD):
            by_step = operations_of(evidence, rank, name)
            for step, operations in zip(given.steps, by_step, strict=True):
                numel = 2 * (n - 1) * step.rows_per_rank * step.z[0].shape[1]
                budget = numel * _ITEMSIZE
                if name == BACKWARD:
                    budget += math.ceil(2 * (n - 1) * given.weight_D.nbytes / n)
                sent_bytes = ring_bytes(operations, n)
                if sent_bytes > budget:
                    way = "forward" if name == FORWARD else "backward"
                    said = f"in {way} rank {rank} sends {sent_bytes:,} bytes on a ring, and "
                    said += f"the budget is {budget:,}"
                    return _over(evidence, said, way, operations, step)
    return None


def less_traffic(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Right values, and less than all rows, summed and gathered, forward or backward."""
    n = evidence.world_size
    for rank in range(n):
        for name, way in ((FORWARD, "forward"), (BACKWARD, "backward")):
            by_step = operations_of(evidence, rank, name)
            for step, operations in zip(given.steps, by_step, strict=True):
                least_bytes = 2 * (n - 1) * step.z[0].nbytes // n  # without any padding
                sent_bytes = ring_bytes(operations, n)
                if sent_bytes < least_bytes:
                    return Finding(
                        Outcome.WRONG,
                        "less travels than all rows",
                        f"the values are right, and in {way} rank {rank} sends {sent_bytes:,} "
                        f"bytes on a ring: to sum and to gather {step.num_rows} rows takes at "
                        f"least {least_bytes:,}. The other ranks' rows came another way; ranks "
                        "talk through the group's collectives",
                        evidence.label,
                        hint=1,
                    )
    return None


def _over(
    evidence: CaseEvidence, said: str, way: str, operations: list[Operation], step: Step
) -> Finding:
    """By the all-reduce of all rows, if there is one."""
    own_bytes = step.rows_per_rank * step.z[0].shape[1] * _ITEMSIZE
    long = [op for op in operations if op.kind == "all_reduce" and op.payload_bytes > own_bytes]
    if long:
        return Finding(
            Outcome.OVER_BUDGET,
            f"all-reduces all rows {way}",
            f"the values are right, and {said}. An all_reduce gives every rank all rows, and it "
            "keeps an nth of them: the half of it that adds up is a reduce_scatter, and the other "
            "half is paid again with the all_gather",
            evidence.label,
            hint=1,
            where=long[0].origin,
        )
    return Finding(
        Outcome.OVER_BUDGET,
        f"sends too much {way}",
        f"the values are right, and {said}: a reduce_scatter and an all_gather of all rows, with "
        "no more padding than it takes, and in backward the D numbers of the weight",
        evidence.label,
        hint=1,
        where=operations[-1].origin,
    )
