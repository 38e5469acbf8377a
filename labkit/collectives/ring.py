"""Ring reduce-scatter, all-gather and all-reduce, in blocks. The second rung.

It adds to plain.py: a long chunk travels in blocks of BLOCK_BYTES. While one block is added, the
next is on its way, and a rank passes a block on as soon as it has it. The two phases are then one
stream of blocks. Whole chunks take up to 1.5 times as long. A rank posts its send and its receive
as one (`group.together()`): on nccl two ranks that both send first may wait for each other. Each
phase can be called alone, a sum can be left in place, and arguments are checked.

Steps: 2(n-1). Wire: every rank sends each chunk but one, twice: 2(n-1)/n of x. In no
all-reduce made of messages does the busiest rank send less (a tree lets its leaves send only x, and
its root pays), which is why rings are used for large tensors; for small ones 2(n-1) latencies are
too many.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69(2), 2009.
"""

from collections.abc import Iterable, Iterator

import torch

from labkit.collectives.stream import Blocks, Move, blocks, result_like, stream
from labkit.comm import Group, tensor_arguments
from labkit.comm.group import chosen
from labkit.comm.member import messages_of

# A message wakes two threads whatever its size: blocks of 1 MiB took 1.3 times as long as these,
# and whole chunks, of which no part travels while another is added, up to 1.5 times.
BLOCK_BYTES = 4 * 2**20
# Two blocks are all the memory that a reduction in place takes, and its caller counts each byte.
IN_PLACE_BLOCK_BYTES = 2 * 2**20


def ring_all_reduce(
    x: torch.Tensor, group: Group | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sum of `x` over the group's ranks, on every rank.

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. It is left
    alone, and the result is a new contiguous tensor, unless out=x asks for the sum in place.
    Wire: 2(n-1) chunks. Memory besides the result: two blocks, and a copy of an x that is not
    contiguous. TypeError for a dtype without a sum, ValueError for an `out` unlike x.
    """
    group = chosen(group)
    total = result_like(x, out, group)
    parts, totals = _chunks(x.contiguous(), group), _chunks(total, group)
    if group.size == 1:
        total.copy_(x.detach())
    moves = [*_reducing(parts, totals, group, then_gather=True), *_gathering(totals, group)]
    with messages_of("ring_all_reduce", x):
        _around(parts[group.rank - 1], moves, group)
    return total


def ring_reduce_scatter(
    x: torch.Tensor, group: Group | None = None, *, in_place: bool = False
) -> torch.Tensor:
    """Rank r's chunk of the sum of `x` over the ranks; `x` itself is left alone.

    x: any shape and size; it is cut as one flat row of elements. Returns (chunk numel,).
    in_place: without memory of its own, the result is a view of x's chunk r, and the rest of a
    contiguous x holds partial sums.
    Adjoint of ring_all_gather. Wire: n - 1 chunks: (n-1)/n of x.
    """
    group = chosen(group)
    total = result_like(x, x if in_place else None, group)
    if group.size == 1:
        return (total if in_place else total.copy_(x.detach())).view(-1)
    parts, totals = _chunks(x.contiguous(), group), _chunks(total, group)
    block_bytes = IN_PLACE_BLOCK_BYTES if in_place else BLOCK_BYTES
    moves = _reducing(parts, totals, group, then_gather=False, block_bytes=block_bytes)
    with messages_of("ring_reduce_scatter", x):
        _around(parts[group.rank - 1], moves, group, block_bytes)
    own = totals[group.rank]
    return own if in_place else own.clone()  # not a view: the other chunks may be freed


def ring_all_gather(
    chunk: torch.Tensor,
    numel: int,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return every rank's chunk, joined in rank order.

    chunk: rank r's part of `numel` elements, as tensor_split cuts them. Returns (numel,): a new
    tensor, or `out`, contiguous, of which `chunk` may be the part that it belongs to.
    Adjoint of ring_reduce_scatter. Wire: n - 1 chunks: (n-1)/n of the result. TypeError for no
    tensor and no number, ValueError for a chunk or an `out` of another size.
    """
    group = chosen(group)
    chunk = tensor_arguments.tensor(chunk, group)
    whole = tensor_arguments.row(out, numel, chunk, group)
    chunks = _chunks(whole, group)
    own = chunks[group.rank]
    if chunk.numel() != own.numel():
        raise ValueError(
            f"rank {group.rank} of {group.size} holds {own.numel()} of {numel} elements, but its "
            f"chunk has {chunk.numel()}; cut with torch.tensor_split(x, {group.size})"
        )
    if own.data_ptr() != chunk.data_ptr():
        own.copy_(chunk.flatten())
    with messages_of("ring_all_gather", whole):
        _around(own, _gathering(chunks, group), group)
    return whole


def _chunks(x: torch.Tensor, group: Group) -> Blocks:
    return x.detach().view(-1).tensor_split(group.size)


def _reducing(
    parts: Blocks,
    totals: Blocks,
    group: Group,
    *,
    then_gather: bool,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[Move]:
    """First phase: chunks rank - 2, rank - 3, ... and at last rank, each to be added to."""
    left, right = _neighbours(group)
    for step in range(group.size - 1):
        arriving = (group.rank - 2 - step) % group.size
        targets = (right,) if then_gather or arriving != group.rank else ()
        both = (blocks(chunks[arriving], block_bytes) for chunks in (totals, parts))
        for total, part in zip(*both, strict=True):
            yield Move(total, (left,), targets, part)


def _gathering(totals: Blocks, group: Group) -> Iterator[Move]:
    """Second phase: chunks rank - 1, rank - 2, ... and at last rank + 1, complete.

    A chunk may arrive where its partial sum was sent from: it has then been through the right
    neighbour, so that earlier message has long been received.
    """
    left, right = _neighbours(group)
    for step in range(group.size - 1):
        for total in blocks(totals[(group.rank - 1 - step) % group.size], BLOCK_BYTES):
            yield Move(total, (left,), (right,) if step < group.size - 2 else ())


def _around(
    first: torch.Tensor, moves: Iterable[Move], group: Group, block_bytes: int = BLOCK_BYTES
) -> None:
    """Send `first` to the right, then make the moves: what comes from the left goes on."""
    if group.size > 1:
        _, right = _neighbours(group)
        begin = [Move(block, (), (right,)) for block in blocks(first, block_bytes)]
        stream([*begin, *moves], group)


def _neighbours(group: Group) -> tuple[int, int]:
    return (group.rank - 1) % group.size, (group.rank + 1) % group.size
