"""Ring all-reduce = reduce-scatter + all-gather, by messages to the right-hand neighbour only.

x is cut into n segments (`torch.tensor_split`: the first numel % n are one element longer). In the
first phase a segment travels round the ring and grows by one rank's part at every stop; in the
second the finished segments travel round once more. With n = 3, "ab" = a's part plus b's:

    reduce-scatter   rank a        rank b        rank c
    step 0 sends     a2            b0            c1            segment rank - 1
    step 1 sends     ac1           ab2           bc0
    then holds       bca0          cab1          abc2          segment rank, complete

    all-gather       sends its complete segment, then passes on what it received

Steps: 2(n-1). Wire: every rank sends each segment but one, twice: 2(n-1)/n of x. No rank sends
less in any all-reduce that is made of messages, which is why rings are used for large tensors; for
small ones 2(n-1) latencies are too many.
Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69(2), 2009.
"""

import torch

from labkit.comm import Group


def ring_all_reduce(x: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """The sum of `x` over the group's ranks, on every rank; `x` itself is left alone.

    x: any shape, size (also 0) and dtype but bool, the same on every rank.
    Returns a new contiguous tensor of that shape. Wire: 2(n-1) messages of one segment.
    """
    group = group or Group.default()
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    segments = _segments(total, group)
    _reduce_scatter(_segments(x.contiguous(), group), segments, group)
    _all_gather(segments, group)
    return total


def ring_reduce_scatter(x: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Rank r's segment of the sum of `x` over the ranks; `x` itself is left alone.

    x: any shape and size; it is cut as one flat row of elements. Returns (segment numel,).
    Adjoint of ring_all_gather. Wire: n - 1 messages of one segment: (n-1)/n of x.
    """
    group = group or Group.default()
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    segments = _segments(total, group)
    _reduce_scatter(_segments(x.contiguous(), group), segments, group)
    return segments[group.rank].clone()  # not a view: the rest of `total` may go


def ring_all_gather(
    segment: torch.Tensor, numel: int, group: Group | None = None
) -> torch.Tensor:
    """Every rank's segment, joined in rank order.

    segment: rank r's part of `numel` elements, as tensor_split cuts them. Returns (numel,).
    Adjoint of ring_reduce_scatter. Wire: n - 1 messages of one segment: (n-1)/n of the result.
    """
    group = group or Group.default()
    whole = segment.new_empty(numel)
    segments = _segments(whole, group)
    own = segments[group.rank]
    if segment.numel() != own.numel():
        raise ValueError(
            f"rank {group.rank} of {group.size} holds {own.numel()} of {numel} elements, but its "
            f"segment has {segment.numel()}; cut with torch.tensor_split(x, {group.size})"
        )
    own.copy_(segment.flatten())
    _all_gather(segments, group)
    return whole


def _segments(x: torch.Tensor, group: Group) -> tuple[torch.Tensor, ...]:
    return x.view(-1).tensor_split(group.size)


def _reduce_scatter(
    parts: tuple[torch.Tensor, ...], totals: tuple[torch.Tensor, ...], group: Group
) -> None:
    """Fill totals[rank] with the sum of every rank's parts[rank]; other totals are scratch."""
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    if n == 1:
        totals[0].copy_(parts[0])
    outgoing = parts[left]
    for step in range(n - 1):
        arriving = (rank - 2 - step) % n
        # Both are posted before either is waited for: send against send would wait for ever.
        incoming = group.irecv(totals[arriving], left)
        sending = group.isend(outgoing, right)
        outgoing = incoming.wait().add_(parts[arriving])
        sending.wait()


def _all_gather(segments: tuple[torch.Tensor, ...], group: Group) -> None:
    """Fill every segment from the rank whose number it has."""
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    for step in range(n - 1):
        incoming = group.irecv(segments[(rank - 1 - step) % n], left)
        sending = group.isend(segments[(rank - step) % n], right)
        incoming.wait()
        sending.wait()
