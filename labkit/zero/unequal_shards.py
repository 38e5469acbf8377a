"""ZeRO-1 with unequal shards: a rank with more free memory keeps more optimizer states.

    free memory       rank 0  40 GB    rank 1  20 GB    rank 2  20 GB
    shards            w0 w1 w2 w3      w4 w5            w6 w7

    gradients         all              all              all
    all-to-all        G0 G1 G2 G3      G4 G5            G6 G7           summed by their owner
    optimizer.step    w0'...w3'        w4' w5'          w6' w7'
    all-to-all        w0'...w7'        w0'...w7'        w0'...w7'       each owner sends its own

ZeRO-1's reduce-scatter and all-gather have equal shards, so the smallest memory limits all ranks.
An all-to-all takes shards of any size.

Layout: parameters and gradients are whole on every rank, in flat tensors. Of the optimizer states
rank r has those of shards[r] numbers, which may be none.
Wire: of D numbers, rank r sends D - shards[r], and then (n-1) shards[r]. Over all ranks that is
2(n-1) D, as with equal shards. The rank with the largest shard sends the most.
Paper: Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 5.1, for equal shards.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from labkit import arguments
from labkit.comm import Group
from labkit.zero.plain_zero1 import Optimizer


def shards_by_memory(numel: int, free_bytes: Sequence[int], state_bytes: int) -> list[int]:
    """Return how many numbers each rank keeps states of, in proportion to its free memory.

    numel: of all parameters. state_bytes: for each number, 12 for AdamW with a float32 copy.
    ValueError if all ranks together have too little.
    """
    arguments.whole("state_bytes", state_bytes, "bytes of states for each number, 1 or more")
    room = [arguments.whole("free_bytes", each, "0 or more", least=0) // state_bytes
            for each in free_bytes]  # fmt: skip
    if sum(room) < numel:
        raise ValueError(
            f"free_bytes={list(free_bytes)} hold the states of {sum(room):,} numbers of "
            f"{state_bytes} bytes, and there are {numel:,}: add ranks, or use fewer bytes a number"
        )
    ends = [numel * each // max(1, sum(room)) for each in accumulate(room, initial=0)]
    return [stop - start for start, stop in pairwise(ends)]


def unequal_zero1_step(
    parameters: torch.Tensor,
    gradients: torch.Tensor,
    optimizer: Optimizer,
    group: Group,
    shards: Sequence[int],
) -> None:
    """Update `parameters`, (D,), by one optimizer step with the mean of the ranks' gradients.

    optimizer: holds the states of this rank's shard. shards: numbers of each rank, the same list
    on all ranks. ValueError unless they add up to D.
    """
    n, own, D = group.size, shards[group.rank], parameters.numel()
    if sum(shards) != D:
        raise ValueError(
            f"shards={list(shards)} add up to {sum(shards)}, and there are {D} numbers"
        )
    start = sum(shards[: group.rank])
    gradient = group.all_to_all(gradients, shards, [own] * n).view(n, own).sum(0) / n
    shard = parameters[start : start + own]
    optimizer.step(shard, gradient)
    parameters.copy_(group.all_to_all(shard.repeat(n), [own] * n, shards))
