"""Ring reduce-scatter, all-gather and all-reduce, in blocks. The second rung.

It adds four things to plain.py. A long chunk travels in blocks of BLOCK_BYTES: while one block is
added, the next is on its way, and whole chunks would take up to 1.5 times as long. A rank posts its
send and its receive together (`group.together()`): on nccl two ranks that both send first may wait
for each other. Each phase can be called alone. The sum can be in place, and arguments are checked.

Steps: 2(n-1). Wire: in each phase every rank sends all chunks but one, together 2(n-1)/n of x. No
all-reduce made of messages lets its busiest rank send less: in a tree the leaves send only x, but
inner ranks send up to 3 x. So rings are used for large tensors. For small ones their 2(n-1)
latencies take too long.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69(2), 2009.
"""

from collections.abc import Iterable, Iterator

import torch

from labkit.collectives.stream import Blocks, Move, blocks, result_like, stream
from labkit.comm import Group, tensor_arguments
from labkit.comm.group import chosen
from labkit.comm.member import messages_of

# A message wakes two threads, whatever its size: blocks of 1 MiB took 1.3 times as long as these,
# and whole chunks up to 1.5 times, since no part of a chunk travels while another part is added.
BLOCK_BYTES = 4 * 2**20
# A reduction in place is for callers short of memory. It takes two blocks and nothing else.
IN_PLACE_BLOCK_BYTES = 2 * 2**20


def ring_all_reduce(
    x: torch.Tensor, group: Group | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sum of `x` over the group's ranks, on every rank.

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. The result
    is a new contiguous tensor and x is unchanged, unless out=x asks for the sum in place.
    Wire: 2(n-1) chunks. Memory besides the result: two blocks, and a copy of an x that is not
    contiguous. TypeError for a dtype without a sum, ValueError for an `out` unlike x.
    """
    group = chosen(group)
    total = result_like(x, out, group)
    parts, totals = _chunks(x.contiguous(), group), _chunks(total, group)
    if group.size == 1:
        total.copy_(x.detach())
    moves = [
        *_reduce_scatter_moves(parts, totals, group, then_gather=True),
        *_all_gather_moves(totals, group),
    ]
    with messages_of("ring_all_reduce", x):
        _send_first_and_stream(parts[group.rank - 1], moves, group)
    return total


def ring_reduce_scatter(
    x: torch.Tensor, group: Group | None = None, *, in_place: bool = False
) -> torch.Tensor:
    """Return this rank's chunk of the sum of `x` over the ranks.

    x: any shape and size, cut as one flat row of elements. Returns (chunk numel,). in_place=False
    leaves x unchanged. With in_place=True the result is a view of a contiguous x's chunk `rank`,
    and the rest of x holds partial sums afterwards.
    Adjoint of ring_all_gather. Wire: n - 1 chunks: (n-1)/n of x.
    """
    group = chosen(group)
    total = result_like(x, x if in_place else None, group)
    if group.size == 1:
        return (total if in_place else total.copy_(x.detach())).view(-1)
    parts, totals = _chunks(x.contiguous(), group), _chunks(total, group)
    block_bytes = IN_PLACE_BLOCK_BYTES if in_place else BLOCK_BYTES
    moves = _reduce_scatter_moves(parts, totals, group, then_gather=False, block_bytes=block_bytes)
    with messages_of("ring_reduce_scatter", x):
        _send_first_and_stream(parts[group.rank - 1], moves, group, block_bytes)
    own = totals[group.rank]
    return own if in_place else own.clone()  # not a view: the other chunks may be freed


def ring_all_gather(
    chunk: torch.Tensor,
    numel: int,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the chunks of all ranks, joined in rank order.

    chunk: this rank's chunk of `numel` elements, as tensor_split cuts them. Returns (numel,): a new
    tensor, or the contiguous `out`. `chunk` may be a view of its own place in `out`.
    Adjoint of ring_reduce_scatter. Wire: n - 1 chunks: (n-1)/n of the result. TypeError if chunk is
    no tensor or numel no number, ValueError for a chunk or an `out` of another size.
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
        _send_first_and_stream(own, _all_gather_moves(chunks, group), group)
    return whole


def _chunks(x: torch.Tensor, group: Group) -> Blocks:
    return x.detach().view(-1).tensor_split(group.size)


def _reduce_scatter_moves(
    parts: Blocks,
    totals: Blocks,
    group: Group,
    *,
    then_gather: bool,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[Move]:
    """Yield the first phase: chunks rank - 2, ..., rank arrive, and this rank's are added."""
    left, right = _neighbours(group)
    for step in range(group.size - 1):
        arriving = (group.rank - 2 - step) % group.size
        targets = (right,) if then_gather or arriving != group.rank else ()
        both = (blocks(chunks[arriving], block_bytes) for chunks in (totals, parts))
        for total, part in zip(*both, strict=True):
            yield Move(total, (left,), targets, part)


def _all_gather_moves(totals: Blocks, group: Group) -> Iterator[Move]:
    """Yield the second phase: complete chunks rank - 1, rank - 2, ..., rank + 1 arrive.

    A chunk may overwrite the partial sum that this rank has sent. The complete chunk contains that
    partial sum, so the right neighbour has received it.
    """
    left, right = _neighbours(group)
    for step in range(group.size - 1):
        for total in blocks(totals[(group.rank - 1 - step) % group.size], BLOCK_BYTES):
            yield Move(total, (left,), (right,) if step < group.size - 2 else ())


def _send_first_and_stream(
    first: torch.Tensor, moves: Iterable[Move], group: Group, block_bytes: int = BLOCK_BYTES
) -> None:
    """Send the chunk `first` to the right, then make the moves."""
    if group.size > 1:
        _, right = _neighbours(group)
        sends = [Move(block, (), (right,)) for block in blocks(first, block_bytes)]
        stream([*sends, *moves], group)


def _neighbours(group: Group) -> tuple[int, int]:
    return (group.rank - 1) % group.size, (group.rank + 1) % group.size
