"""reduce_buckets is graded on means, and on one all-reduce per bucket, of the bucket's bytes."""

import dataclasses
import random
from collections.abc import Sequence

import torch

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.bucket_inputs import asked_in, random_cases, with_gradients
from labkit.grade.graders.bucket_rules import right
from labkit.grade.graders.gradient_values import Gradients, Left, Theory, is_close, wrong_gradients
from labkit.grade.graders.gradient_wire import not_from_collectives
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome


class ReduceBuckets(OnRanks):
    """The grader of the second function of gradient_buckets."""

    functions: Sequence[str] = ("reduce_buckets",)
    allowed: Sequence[str] = ("all_reduce",)
    world_sizes: Sequence[int] = (3, 2, 1)
    call = staticmethod(with_gradients)
    num_arguments = 3
    shown_by_a_pass = "one all-reduce per bucket"

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Gradients in several buckets, in one, of several dtypes, late ranks."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong, values before budget."""
        found = diagnosis.unlisted_operation(evidence, self.allowed)
        if found is not None:
            return found
        left = [
            Left({_name(i): each for i, each in enumerate(record.outputs)}, {})
            for record in evidence.completed
        ]
        mean = _combined(evidence.case, 1 / evidence.world_size)
        if evidence.case.altered is not None:
            return not_from_collectives(evidence, left, mean)
        return (
            _left_out(evidence, left, mean)
            or wrong_gradients(
                evidence,
                left,
                mean,
                _theories(evidence),
                "each gradient holds the mean of the same gradient on all ranks: parts of a bucket "
                "lie in it in the order of its indices, with their own lengths",
            )
            or _other_messages(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Here one collective is allowed."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than all_reduce")
        return finding


def _name(index: int) -> str:
    return f"gradients[{index}]"


def _combined(case: Case, factor: float) -> Gradients:
    """The sum over the ranks times `factor`."""
    columns = zip(*(gradients for gradients, _ in case.arguments), strict=True)
    return {_name(i): torch.stack(its).sum(0) * factor for i, its in enumerate(columns)}


def _own(case: Case, rank: int) -> Gradients:
    return {_name(i): each for i, each in enumerate(case.arguments[rank][0])}


def _theories(evidence: CaseEvidence) -> list[Theory]:
    case, n = evidence.case, evidence.world_size
    return [
        Theory(
            "the means do not get into the gradients",
            "every rank has its own gradients still: torch.cat copies, so what is reduced is a "
            "copy. Copy its parts back into the gradients' own memory, with copy_; an assignment "
            "to an element of the list, or to .data, does not do that",
            lambda rank: _own(case, rank),
        ),
        Theory(
            "sums instead of averaging",
            f"the gradients are the sum over the ranks, {n} times the mean",
            lambda rank: _combined(case, 1),
        ),
        Theory(
            "divides by the number of ranks twice",
            f"the gradients are the mean, divided by {n} once more",
            lambda rank: _combined(case, 1 / n**2),
        ),
    ]


def _left_out(evidence: CaseEvidence, left: Sequence[Left], mean: Gradients) -> Finding | None:
    """Whole buckets that are as they were, while others are averaged."""
    ranks = range(evidence.world_size)
    buckets = right(asked_in(evidence.case))

    def holds(bucket: Sequence[int], expected: Sequence[Gradients]) -> bool:
        names = [_name(index) for index in bucket]
        return all(is_close(left[r].gradients[n], expected[r][n]) for r in ranks for n in names)

    means, own = [mean for _ in ranks], [_own(evidence.case, rank) for rank in ranks]
    untouched = [bucket for bucket in buckets if not holds(bucket, means) and holds(bucket, own)]
    others = [bucket for bucket in buckets if bucket not in untouched]
    if not untouched or not others or not all(holds(bucket, means) for bucket in others):
        return None
    return Finding(
        Outcome.WRONG,
        "a bucket is never reduced",
        f"{untouched} are as they were, and {others} are averaged: each bucket is reduced, the "
        "last one and a single gradient's too",
        first_seen=evidence.label,
        hint=2,
    )


def _other_messages(evidence: CaseEvidence) -> Finding | None:
    """All-reduces that are not one for each bucket, in order."""
    asked = asked_in(evidence.case)
    buckets = right(asked)
    expected = [asked.nbytes(bucket) for bucket in buckets]
    for rank, operations in enumerate(evidence.operations):
        got = [each.payload_bytes for each in operations]
        if got == expected or (evidence.world_size == 1 and not got):
            continue
        by_gradient = [asked.nbytes([index]) for index in range(len(asked.numels))]
        if sorted(got) == sorted(by_gradient):
            name, why = (
                "an all-reduce for every gradient",
                "the buckets decide the order, but each gradient travels alone and costs its "
                "latency: put a bucket's gradients into one flat tensor",
            )
        elif got == [sum(expected)]:
            name, why = ("everything in one message", "nothing could travel during backward")
        elif sorted(got) == sorted(expected):
            name, why = (
                "reduces the buckets in another order",
                "the first bucket is the first that backward finishes, so it goes first",
            )
        elif sum(got) > sum(expected):
            name, why = ("sends more than the buckets", "a bucket's gradients, and nothing else")
        else:
            name, why = ("other messages than the buckets", "each bucket is one all-reduce")
        return Finding(
            Outcome.OVER_BUDGET,
            name,
            f"rank {rank} makes all-reduces of {got} bytes; the buckets {buckets} have {expected}. "
            f"{why[0].upper()}{why[1:]}",
            first_seen=evidence.label,
            hint=1,
            where=operations[-1].origin if operations else None,
        )
    return None
