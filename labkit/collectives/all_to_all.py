"""Pairwise all-to-all: every rank sends a block of rows to every other, one peer per step.

x is cut along dim 0 into one block of rows per rank, of any sizes. "b2" is rank b's block for rank
2, which is c:

    has                rank a          rank b          rank c
                       a0 a1 a2        b0 b1 b2        c0 c1 c2
    step 1 sends       a1 -> b         b2 -> c         c0 -> a         to rank + 1
    step 2 sends       a2 -> c         b0 -> a         c1 -> b         to rank + 2
    then holds         a0 b0 c0        a1 b1 c1        a2 b2 c2        a transposition

Steps: n - 1. In each step every rank sends to one peer and receives from one, however many ranks
there are: no link carries two messages at a time. Wire: every block but a rank's own, with n equal
blocks (n-1)/n of x per rank. Nothing can be summed on the way, so no algorithm sends less.

An empty block is not sent: both sides know its size, and an empty message costs as much latency as
any other. If two ranks disagree about a block's rows, one of them raises OperationMismatch. If one
of them expects no rows at all, it posts no message, and the other waits in vain. Paper: Bruck et
al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE
TPDS 8(11), 1997. Its "index" operation ranges from this algorithm, with the fewest bytes, to log2 n
steps with more bytes, for small blocks.
"""

from collections.abc import Sequence
from typing import Any

import torch

from labkit.comm import Group, Pending, tensor_arguments
from labkit.comm.group import chosen


def pairwise_all_to_all(
    x: torch.Tensor,
    group: Group | None = None,
    *,
    send_splits: Sequence[int] | None = None,
    recv_splits: Sequence[int] | None = None,
) -> torch.Tensor:
    """Send the s-th block of this rank's rows to rank s; return the blocks received, in rank order.

    x: (rows, ...), any dtype, any memory layout; unchanged. `send_splits[s]`: rows for rank s;
    `recv_splits[s]`: rows from rank s; without them, n equal blocks. Rank r's send_splits[s] is
    rank s's recv_splits[r].
    Returns a new tensor (sum of recv_splits, ...), as Group.all_to_all does. Adjoint: the same with
    the two splits exchanged. That also sends every row back to where it came from.

    Wire: all of x but the block that stays, in a message for each that is not empty.
    ValueError for splits that do not fit x or the group.
    """
    group = chosen(group)
    x = tensor_arguments.tensor(x, group)
    send_rows, recv_rows = tensor_arguments.both_splits(send_splits, recv_splits, x, group)
    result = x.new_empty(sum(recv_rows), *x.shape[1:])
    outgoing, incoming = x.contiguous().split(send_rows), result.split(recv_rows)
    incoming[group.rank].copy_(outgoing[group.rank])
    for step in range(1, group.size):
        destination, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        _exchange(outgoing[destination], destination, incoming[source], source, group)
    return result


def _exchange(
    block: torch.Tensor, destination: int, buffer: torch.Tensor, source: int, group: Group
) -> None:
    """Send one block and receive another at the same time."""
    pending: list[Pending[Any]] = []
    with group.together():
        if block.numel():
            pending.append(group.isend(block, destination))
        if buffer.numel():
            pending.append(group.irecv(buffer, source))
    for each in pending:
        each.wait()
