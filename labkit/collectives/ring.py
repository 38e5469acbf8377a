"""Ring all-reduce = reduce-scatter + all-gather, by messages to the right-hand neighbour only.

x is cut into n segments (`torch.tensor_split`: the first numel % n are one element longer). In the
first phase a segment travels round the ring and grows by one rank's part at every stop; in the
second the finished segments travel round once more. With n = 3, "ab" = a's part plus b's:

    reduce-scatter   rank a        rank b        rank c
    step 0 sends     a2            b0            c1            segment rank - 1
    step 1 sends     ac1           ab2           bc0
    then holds       bca0          cab1          abc2          segment rank, complete

    all-gather       sends its complete segment, then passes on what it received

Steps: 2(n-1). Wire: every rank sends each segment but one, twice: 2(n-1)/n of x. In no
all-reduce made of messages does the busiest rank send less (a tree lets its leaves send only x, and
its root pays), which is why rings are used for large tensors; for small ones 2(n-1) latencies are
too many.

A long segment travels in blocks of BLOCK_BYTES: while one block is added, the next is on its way,
and a rank passes a block on as soon as it has it. The two phases are then one stream of blocks.
Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69(2), 2009.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from labkit.comm import Group, Pending

# A message wakes two threads whatever its size: blocks of 1 MiB took 1.3 times as long as these,
# and whole segments, of which no part travels while another is added, up to 1.5 times.
BLOCK_BYTES = 4 * 2**20
_BLOCKS_AHEAD = 2


class _Arrival(NamedTuple):
    """One block that comes from the left: where it goes, and what this rank adds to it."""

    target: torch.Tensor
    part: torch.Tensor | None
    """None in the second phase: the block is complete."""
    is_passed_on: bool


def ring_all_reduce(
    x: torch.Tensor, group: Group | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The sum of `x` over the group's ranks, on every rank.

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. It is left
    alone, and the result is a new contiguous tensor, unless out=x asks for the sum in place.
    Wire: 2(n-1) segments. Memory besides the result: two blocks, and a copy of an x that is not
    contiguous. TypeError for a dtype without a sum, ValueError for an `out` unlike x.
    """
    group = group or Group.default()
    total = _result(x, out)
    parts, totals = _segments(x.contiguous(), group), _segments(total, group)
    if group.size == 1:
        total.copy_(x)
    _stream(
        parts[group.rank - 1],
        [*_reducing(parts, totals, group, then_gather=True), *_gathering(totals, group)],
        group,
    )
    return total


def ring_reduce_scatter(x: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Rank r's segment of the sum of `x` over the ranks; `x` itself is left alone.

    x: any shape and size; it is cut as one flat row of elements. Returns (segment numel,).
    Adjoint of ring_all_gather. Wire: n - 1 segments: (n-1)/n of x.
    """
    group = group or Group.default()
    if group.size == 1:
        return x.detach().flatten().clone()
    total = _result(x, None)
    parts, totals = _segments(x.contiguous(), group), _segments(total, group)
    _stream(parts[group.rank - 1], _reducing(parts, totals, group, then_gather=False), group)
    return totals[group.rank].clone()  # not a view: the other segments may be freed


def ring_all_gather(segment: torch.Tensor, numel: int, group: Group | None = None) -> torch.Tensor:
    """Every rank's segment, joined in rank order.

    segment: rank r's part of `numel` elements, as tensor_split cuts them. Returns (numel,).
    Adjoint of ring_reduce_scatter. Wire: n - 1 segments: (n-1)/n of the result.
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
    own.copy_(segment.detach().flatten())
    _stream(own, _gathering(segments, group), group)
    return whole


def _result(x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"expected a tensor, got {x!r}; wrap numbers as torch.tensor({x!r})")
    if x.dtype == torch.bool:
        raise TypeError("booleans have no sum; pass x.int(), and compare the result with 0")
    try:
        torch.add(x.new_empty(0), x.new_empty(0))
    except (RuntimeError, NotImplementedError):
        raise TypeError(
            f"torch cannot add {x.dtype} here; convert x, to torch.float32 for example"
        ) from None
    if out is None:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous and like x, {tuple(x.shape)} of {x.dtype}; it is "
            f"{tuple(out.shape)} of {out.dtype}. Leave it away to get a new tensor"
        )
    return out.detach()


Segments = tuple[torch.Tensor, ...]


def _segments(x: torch.Tensor, group: Group) -> Segments:
    return x.detach().view(-1).tensor_split(group.size)


def _blocks(segment: torch.Tensor) -> Segments:
    return segment.split(max(BLOCK_BYTES // segment.element_size(), 1))


def _reducing(
    parts: Segments, totals: Segments, group: Group, *, then_gather: bool
) -> Iterator[_Arrival]:
    """First phase: segments rank - 2, rank - 3, ... and at last rank, each to be added to."""
    for step in range(group.size - 1):
        arriving = (group.rank - 2 - step) % group.size
        is_passed_on = then_gather or arriving != group.rank
        for total, part in zip(_blocks(totals[arriving]), _blocks(parts[arriving]), strict=True):
            yield _Arrival(total, part, is_passed_on)


def _gathering(totals: Segments, group: Group) -> Iterator[_Arrival]:
    """Second phase: segments rank - 1, rank - 2, ... and at last rank + 1, complete.

    A segment may arrive where its partial sum was sent from: it has then been through the right
    neighbour, so that earlier message has long been received.
    """
    for step in range(group.size - 1):
        for total in _blocks(totals[(group.rank - 1 - step) % group.size]):
            yield _Arrival(total, None, step < group.size - 2)


def _stream(first: torch.Tensor, arrivals: Iterable[_Arrival], group: Group) -> None:
    """Send `first` to the right; add to what comes from the left, and pass it on."""
    if group.size == 1:
        return
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    # Sends and receives are posted before any is waited for: send against send waits for ever.
    sending = [group.isend(block, right) for block in _blocks(first)]
    scratch = first.new_empty(_BLOCKS_AHEAD, _blocks(first)[0].numel() + 1)  # segments differ by 1
    expected: deque[tuple[_Arrival, Pending[torch.Tensor]]] = deque()

    def take() -> None:
        arrival, pending = expected.popleft()
        block = pending.wait()
        if arrival.part is not None:
            block = torch.add(block, arrival.part, out=arrival.target)
        if arrival.is_passed_on:
            sending.append(group.isend(block, right))

    for number, arrival in enumerate(arrivals):
        if len(expected) == _BLOCKS_AHEAD:
            take()  # which makes its scratch free again
        buffer = arrival.target
        if arrival.part is not None:
            buffer = scratch[number % _BLOCKS_AHEAD, : buffer.numel()]
        expected.append((arrival, group.irecv(buffer, left)))
    while expected:
        take()
    for pending in sending:
        pending.wait()
