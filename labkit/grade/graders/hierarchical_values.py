"""Wrong sums of an all-reduce over hosts, and the mistake that each kind of them comes from.

x is thought of as L segments, one for each place on a host, of H pieces each, one for each host.
"""

import torch

from labkit.grade import ledger, provenance
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.hierarchical_inputs import tiers_of
from labkit.grade.graders.ring_inputs import expected_sum, is_wrong
from labkit.grade.graders.sums import (
    Recognised,
    average,
    first_wrong,
    loses_digits,
    reads_too_early,
)
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor


def wrong_values(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the sums, or None where all are right."""
    total, tolerance = expected_sum(evidence.case)
    outputs = [record.output for record in evidence.completed if record.output is not None]
    masks = [is_wrong(output, total, tolerance) for output in outputs]
    if not any(mask.any() for mask in masks):
        return None
    name, explanation, hint = (
        _nothing_is_sent(evidence)
        or reads_too_early(outputs)
        or average(outputs, total)
        or loses_digits(outputs, total)
        or _ignores_remainder(evidence, masks)
        or _stops_early(evidence, masks)
        or _from_summands(evidence, outputs)
        or ("wrong sum", "some elements are not the sum over all ranks", 2)
    )
    seen = first_wrong(evidence, outputs, masks, total)
    return Finding(Outcome.WRONG, name, explanation, seen, hint)


def _nothing_is_sent(evidence: CaseEvidence) -> Recognised | None:
    if evidence.world_size == 1 or any(ledger.sends(evidence)):
        return None
    return ("nothing is sent", "no rank can know what the others hold", 1)


def _ignores_remainder(evidence: CaseEvidence, masks: list[Tensor]) -> Recognised | None:
    """Only elements are wrong that a cut into equal parts leaves over, within hosts or between."""
    ranks_per_host, num_hosts = tiers_of(evidence)
    numel = masks[0].numel()
    left_over = torch.zeros(numel, dtype=torch.bool)
    left_over[numel // len(masks) * len(masks) :] = True
    for segment in left_over.tensor_split(ranks_per_host):
        segment[segment.numel() // num_hosts * num_hosts :] = True
    if any((mask & ~left_over).any() for mask in masks):
        return None
    return (
        "ignores the remainder of an uneven size",
        f"{numel} elements do not come out even on {num_hosts} hosts of {ranks_per_host}, and just "
        "those that are left over are wrong. `numel // n` forgets them; torch.tensor_split makes "
        "the first parts one longer. Cut twice: for the ranks of a host, and each part once more "
        "for the hosts",
        3,
    )


def _stops_early(evidence: CaseEvidence, masks: list[Tensor]) -> Recognised | None:
    """Each rank has some complete parts: those that an all-gather would have handed around."""
    ranks_per_host, num_hosts = tiers_of(evidence)
    right = [_right_pieces(mask, ranks_per_host, num_hosts) for mask in masks]
    if len(set.union(*right)) < len(masks):
        return None
    num_pieces = {len(pieces) for pieces in right}
    num_segments = {len({segment for segment, _ in pieces}) for pieces in right}
    if ranks_per_host > 1 and num_pieces == {num_hosts} and num_segments == {1}:
        return (
            "the all-gather within the host is missing",
            "every rank has one complete segment, its host's other ranks have the others, and "
            "there it ends. One more phase, on fast links, hands them around",
            1,
        )
    if num_hosts > 1 and num_pieces == num_segments == {ranks_per_host}:
        return (
            "the all-gather between hosts is missing",
            f"every host has one complete piece in {num_hosts} of each segment. An all-reduce "
            "between hosts has two phases: after the reduce-scatter, the pieces are handed around",
            1,
        )
    if num_pieces == {1}:
        return (
            "both all-gathers are missing",
            "every rank has one complete piece, each another one: that is a reduce-scatter over "
            "all ranks. The pieces are to be handed around twice, between hosts and then within",
            1,
        )
    return None


def _right_pieces(mask: Tensor, ranks_per_host: int, num_hosts: int) -> set[tuple[int, int]]:
    """(segment, piece) of all pieces without a wrong element."""
    return {
        (s, p)
        for s, segment in enumerate(mask.tensor_split(ranks_per_host))
        for p, piece in enumerate(segment.tensor_split(num_hosts))
        if not piece.any()
    }


def _from_summands(evidence: CaseEvidence, outputs: list[Tensor]) -> Recognised | None:
    """What the summands of wrong sums give away, where they can be told."""
    inputs = [arguments[0] for arguments in evidence.case.arguments]
    if inputs[0].is_complex():
        return None
    factors_RSKJ = provenance.factors(inputs, outputs)
    if factors_RSKJ is None:
        return None
    counts_RSK = factors_RSKJ.diagonal(dim1=1, dim2=3).movedim(2, 1)
    return (
        _misplaced(factors_RSKJ)
        or _left_out(counts_RSK, *tiers_of(evidence))
        or _miscounted(counts_RSK)
    )


def _misplaced(factors_RSKJ: Tensor) -> Recognised | None:
    """Part j's data lies in part s."""
    n = len(factors_RSKJ)
    strangers = factors_RSKJ.ne(0) & ~torch.eye(n, dtype=torch.bool)[None, :, None, :]
    if not strangers.any():
        return None
    rank, part, source, stranger = (int(i) for i in strangers.nonzero()[0])
    return (
        "adds up different parts of x",
        f"cut into {n} equal parts, x has on rank {rank} something of rank {source}'s part "
        f"{stranger} in part {part}. Only equal parts may be added. A rank's partners on the other "
        "hosts have the same place there, rank % ranks_per_host: they hold the same segment",
        2,
    )


def _left_out(counts_RSK: Tensor, ranks_per_host: int, num_hosts: int) -> Recognised | None:
    """Every sum is over the ranks of one host, or over one rank of each host."""
    rank = torch.arange(len(counts_RSK))
    host, place, segment = rank // ranks_per_host, rank % ranks_per_host, rank // num_hosts
    same_host_RSK = (host[:, None] == host)[:, None, :].expand_as(counts_RSK)
    same_place_RSK = (place[:, None] == place)[:, None, :].expand_as(counts_RSK)
    place_of_segment_RSK = (segment[:, None] == place)[None, :, :].expand_as(counts_RSK)
    if torch.equal(counts_RSK, same_host_RSK.long()):
        return (
            "the sum stays within the host",
            "every element is the sum over the ranks of one host, and nothing of the other hosts "
            f"is in it. {num_hosts} hosts have such a sum each; these are still to be added",
            1,
        )
    if any(torch.equal(counts_RSK, each.long()) for each in (same_place_RSK, place_of_segment_RSK)):
        return (
            "nothing is added up within the host",
            f"every element is the sum over {num_hosts} ranks, one of each host, and nothing of "
            "the host's other ranks is in it. Add up within each host first: then one rank's "
            "segment stands for all of its host",
            1,
        )
    return None


def _miscounted(counts_RSK: Tensor) -> Recognised:
    if counts_RSK.max() > 1:
        rank, part, source = (int(i) for i in counts_RSK.gt(1).nonzero()[0])
        times = int(counts_RSK[rank, part, source])
        return (
            "counts a contribution more than once",
            f"on rank {rank}, part {part} of {len(counts_RSK)} has rank {source}'s contribution "
            f"{times} times. What has been added up across is complete: within the host it is only "
            "handed around, and adding it up again counts it once per rank",
            2,
        )
    rank, part, source = (int(i) for i in counts_RSK.ne(1).nonzero()[0])
    return (
        "a contribution is missing",
        f"on rank {rank}, part {part} of {len(counts_RSK)} lacks rank {source}'s contribution: it "
        "was passed on before it was complete. The phases end in the reverse order of their "
        "beginnings, between hosts first and then within",
        2,
    )
