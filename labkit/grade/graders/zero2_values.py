"""Segments of mean gradients that code under test returned, and what else it left."""

from collections.abc import Sequence

from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.gradient_values import is_close, is_nearly, shown
from labkit.grade.graders.shard_wire import ROUNDED
from labkit.grade.graders.zero2_inputs import Given
from labkit.grade.graders.zero2_theories import mistakes, right
from labkit.grade.graders.zero2_watch import Seen
from labkit.grade.outcome import Finding, Outcome


def wrong_form(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """No list of tensors, or of other sizes than segments have."""
    for rank, each in enumerate(seen):
        numels = [segment.numel() for segment in each.segments]
        if numels == given.segment_numels:
            continue
        name, why = (
            "returns something else than one segment for each bucket",
            f"a list of tensors with {given.segment_numels} numbers was expected, and there is "
            + (f"one with {numels}" if numels else "no list of tensors"),
        )
        if numels == [numel // evidence.world_size for numel in given.bucket_numels]:
            name, why = (
                "drops the remainder",
                f"a bucket of {given.bucket_numels[0]:,} numbers has segments of {numels[0]:,} "
                f"here, and a few are in none of them: ceil(numel / n) is "
                f"{given.segment_numels[0]:,}. Add zeros at the end until n divides it",
            )
        elif numels == given.bucket_numels and evidence.world_size > 1:
            name, why = (
                "returns whole buckets",
                "what is returned are the gradients of the buckets, all of them: a rank keeps an "
                "nth",
            )
        return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}", hint=2)
    return None


def wrong_segments(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Segments that are not those of the mean, by the mistake that explains all of them."""
    expected = right(given)
    for rank, each in enumerate(seen):
        for bucket, segment in enumerate(each.segments):
            if _is_close(segment, expected[rank][bucket]):
                continue
            values = f"got {shown(segment)}, expected {shown(expected[rank][bucket])}"
            where = f"{evidence.label}: segment of bucket {bucket} on rank {rank}: {values}"
            for mistake in mistakes(given):
                if _all_close(seen, [mistake.segments(r) for r in range(len(seen))]):
                    return Finding(Outcome.WRONG, mistake.name, mistake.explanation, where, hint=2)
            pairs = zip(seen, expected, strict=True)
            if all(all(map(is_nearly, its.segments, values)) for its, values in pairs):
                return Finding(Outcome.WRONG, *ROUNDED, where, hint=2)
            return Finding(
                Outcome.WRONG,
                "other segments than the mean's",
                "segment r is the r-th of n equal parts of the bucket's flat gradients, in the "
                "order of the bucket and with zeros at the end; of the sum over all microbatches "
                "of all ranks, divided by the number of both",
                where,
                hint=2,
            )
    return None


def not_from_collectives(
    evidence: CaseEvidence, given: Given, seen: Sequence[Seen]
) -> Finding | None:
    """Segments that are right on all ranks although what travelled was changed."""
    assert evidence.case.altered is not None
    if not _all_close(seen, right(given)):
        return None
    altered, _ = evidence.case.altered
    return Finding(
        Outcome.WRONG,
        "the segments do not come from the collectives",
        f"in this case one number was changed in what rank {altered} handed to its first "
        "collective, and all segments are those of the unchanged gradients",
        first_seen=evidence.label,
    )


def gradients_left(evidence: CaseEvidence, seen: Sequence[Seen]) -> Finding | None:
    """Parameters with a gradient."""
    for rank, each in enumerate(seen):
        if each.num_gradients_left:
            return Finding(
                Outcome.WRONG,
                "leaves gradients in the parameters",
                f"{each.num_gradients_left} parameters have a gradient afterwards: memory that "
                "nobody needs, and the next backward pass would add to it",
                first_seen=f"{evidence.label}: rank {rank}",
                hint=3,
            )
    return None


def changed_arguments(evidence: CaseEvidence, seen: Sequence[Seen]) -> Finding | None:
    """Parameters or microbatches that the caller gets back as others."""
    num_given = len(evidence.case.arguments[0][2])
    for rank, each in enumerate(seen):
        if each.num_changed:
            name, why = (
                "changes the parameters",
                f"{each.num_changed} parameters have other values than before: the segments are "
                "what the optimizer's step is made with, which comes afterwards",
            )
        elif each.num_frozen:
            name, why = (
                "leaves the parameters frozen",
                f"{each.num_frozen} parameters have requires_grad=False afterwards, so that the "
                "next step has no gradients of them",
            )
        elif each.num_microbatches_left != num_given:
            name, why = (
                "empties the caller's list of microbatches",
                f"{num_given} microbatches were in it before, and {each.num_microbatches_left} "
                "afterwards: the list is the caller's. Go through it with a loop",
            )
        else:
            continue
        return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}", hint=3)
    return None


def _all_close(seen: Sequence[Seen], expected: Sequence[Sequence[Tensor]]) -> bool:
    return all(
        _is_close(segment, value)
        for each, values in zip(seen, expected, strict=True)
        for segment, value in zip(each.segments, values, strict=True)
    )


def _is_close(segment: Tensor, value: Tensor) -> bool:
    return is_close(segment.flatten(), value)
