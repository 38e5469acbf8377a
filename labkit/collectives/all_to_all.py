"""Pairwise all-to-all: every rank has something for every other, and deals it out peer by peer.

x is cut along dim 0 into one block of rows per rank, of any sizes. "b2" is what rank b has for the
third rank, c:

    has                rank a          rank b          rank c
                       a0 a1 a2        b0 b1 b2        c0 c1 c2
    step 1 sends       a1 -> b         b2 -> c         c0 -> a         to rank + 1
    step 2 sends       a2 -> c         b0 -> a         c1 -> b         to rank + 2
    then holds         a0 b0 c0        a1 b1 c1        a2 b2 c2        a transposition

Steps: n - 1. In each, every rank sends to one peer and receives from one, so that no link has two
messages at a time, and a rank has one block on its way out and one on its way in, however many
ranks there are. Wire: every block but the one that stays; nothing can be added up on the way, so
this is also the least. With n equal blocks that is (n-1)/n of x per rank.

An empty block is not sent: both sides know its size, and a message without content costs as much
latency as any other. Ranks that disagree about a block's rows get a Disagreement; where one of them
has no block at all, the other waits in vain.
Paper: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 8(11), 1997, whose "index" operation has this at one end, least
bytes, and log2 n steps with more bytes at the other, for small blocks.
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
    """Rank r sends the s-th block of its rows to rank s, and receives one from each.

    x: (rows, ...), any dtype, any memory layout; left alone. `send_splits[s]`: rows for rank s;
    `recv_splits[s]`: rows from rank s; without them, n equal blocks. Rank r's send_splits[s] is
    rank s's recv_splits[r].
    Returns a new tensor (sum of recv_splits, ...), the blocks in rank order: Group.all_to_all's
    contract. Adjoint: the same with the two splits exchanged, which also is the way back.

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
    """Send one block and receive another, neither of which waits for the other."""
    pending: list[Pending[Any]] = []
    with group.together():
        if block.numel():
            pending.append(group.isend(block, destination))
        if buffer.numel():
            pending.append(group.irecv(buffer, source))
    for each in pending:
        each.wait()
