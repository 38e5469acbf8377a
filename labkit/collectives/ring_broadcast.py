"""Broadcast along a chain of ranks, in blocks: rank r passes on what it gets from rank r - 1.

    root 2 of four ranks:   2 -> 3 -> 0 -> 1

    step    2 to 3    3 to 0    0 to 1
    0       block 0
    1       block 1   block 0
    2       block 2   block 1   block 0
    3                 block 2   block 1
    4                           block 2

Steps, for k blocks: n - 1 until the first is at the end of the chain, and k - 1 more: n + k - 2.
Each step sends a k-th of x, so many blocks take hardly longer than one message with all of x. No
single binary tree is as fast: its inner ranks send every block twice. For short tensors n - 1
latencies take too long.
Wire, D bytes: D from every rank but the last of the chain.

Number of blocks: with more of them the chain fills sooner, but each costs a latency. In the
alpha-beta model (n + k - 2)(alpha + D/k beta) is least for k = sqrt((n - 2) D beta / alpha).
Paper: van de Geijn and Watts, "SUMMA: scalable universal matrix multiplication algorithm",
Concurrency: Practice and Experience 9(4), 1997 (section on pipelined broadcasts).
"""

import torch

from labkit.collectives.stream import BLOCK_BYTES, blocks, copy_like, stream
from labkit.collectives.tree import Place, broadcasting
from labkit.comm import Group, tensor_arguments
from labkit.comm.group import chosen
from labkit.comm.member import messages_of


def ring_broadcast(
    x: torch.Tensor,
    root: int = 0,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> torch.Tensor:
    """Return rank `root`'s `x` on every rank; on the others `x` only gives shape and dtype.

    x: any shape, any size from 0, any dtype. The result is a new contiguous tensor and x is
    unchanged, unless out=x asks for it in place. block_bytes: the same on every rank.
    Wire: x from every rank but root - 1. ValueError for a `root` outside the group, an `out` unlike
    x and a block of no bytes.
    """
    group = chosen(group)
    tensor_arguments.member(root, group, "root")
    result = copy_like(x, out, group)
    if group.rank == root:
        result.copy_(x.detach())
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    # A chain is a tree in which every rank has one child.
    place = Place(None if group.rank == root else left, () if right == root else (right,))
    with messages_of("ring_broadcast", x, root):
        stream(broadcasting(blocks(result.view(-1), block_bytes), place), group)
    return result
