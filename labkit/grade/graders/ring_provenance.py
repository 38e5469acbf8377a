"""Mistakes in which segment goes where, read off the summands of a wrong sum."""

import torch

from labkit.grade import provenance
from labkit.grade.evidence import CaseEvidence

_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint


def recognise(evidence: CaseEvidence, outputs: list[torch.Tensor]) -> _Recognised | None:
    """The mistake behind sums that are whole segments, but the wrong ones; None if there is none
    or it cannot be told."""
    inputs = [arguments[0] for arguments in evidence.case.arguments]
    if inputs[0].is_complex():
        return None
    factors_RSKJ = provenance.factors(inputs, outputs)
    if factors_RSKJ is None:
        return None
    own_place_SJ = torch.eye(len(inputs), dtype=torch.bool)
    stranger_RSKJ = factors_RSKJ.ne(0) & ~own_place_SJ[None, :, None, :]
    if stranger_RSKJ.any():
        return _misplaced(factors_RSKJ, stranger_RSKJ)
    return _miscounted(factors_RSKJ.diagonal(dim1=1, dim2=3))


def _misplaced(factors_RSKJ: torch.Tensor, stranger_RSKJ: torch.Tensor) -> _Recognised:
    """Segment j's data lies in segment s."""
    one_of_each = factors_RSKJ.sum(3).eq(1).all()
    same_for_all = factors_RSKJ.amax(2).eq(factors_RSKJ.amin(2)).all()
    if one_of_each and same_for_all:
        return (
            "complete segments in the wrong places",
            "every sum is complete, but lies where another segment belongs. What arrives in a "
            "step is the segment that the left neighbour sent in that step: compute its number "
            "from the neighbour's rank",
            2,
        )
    rank, segment, source, stranger = (int(i) for i in stranger_RSKJ.nonzero()[0])
    return (
        "sum of wrong segments",
        f"on rank {rank}, segment {segment} of the result has rank {source}'s segment {stranger} "
        f"in it. Segment {segment} is the sum of segments {segment} and of nothing else: add what "
        "arrives to the segment that it is, not to the one that you sent",
        2,
    )


def _miscounted(factors_RKS: torch.Tensor) -> _Recognised:
    """All data lies in its own segment, but some of it is missing, or there twice."""
    rank, source, segment = (int(i) for i in factors_RKS.ne(1).nonzero()[0])
    if factors_RKS.max() > 1:
        rank, source, segment = (int(i) for i in factors_RKS.gt(1).nonzero()[0])
        times = int(factors_RKS[rank, source, segment])
        return (
            "adds a contribution twice",
            f"on rank {rank}, segment {segment} has rank {source}'s contribution {times} times: "
            "something is added that was in the sum already",
            2,
        )
    return (
        "off by one in the ring",
        f"on rank {rank}, segment {segment} lacks rank {source}'s contribution, though the number "
        "of messages is right: a segment is passed on as complete before it is. Where the "
        "reduce-scatter ends depends on where it began: start the all-gather with that segment",
        2,
    )
