"""Hybrid sharding: shards within a group of fast links, replicas across the slow ones.

              host 0: ranks 0 1 2 3     host 1: ranks 4 5 6 7
    shards    s0 s1 s2 s3               s0 s1 s2 s3               gathered and reduced in the host
    replicas  0-4, 1-5, 2-6, 3-7                                  gradients' shards: all-reduced

Per backward pass a rank sends 2(m-1)/m of an n-th to the m - 1 other hosts, so that 2(m-1)/m of
everything leaves a host, instead of the three times everything of a ring through all ranks.
The price is memory: states shrink to 1/4 here, not to 1/8. (torch: HSDP, HYBRID_SHARD.)
Paper: Zhao et al., "PyTorch FSDP", arXiv:2304.11277, section 3.2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.collectives.wire import Done, Wire
from labkit.comm import Group


def require_replicas(replicas: Group, group: Group) -> None:
    """ValueError unless these ranks hold the same shard, and no others of `group` are among them.

    Wire: two numbers in an all-gather.
    """
    mine = torch.tensor([group.rank, group.size], device=group.device)
    if set(replicas.ranks) & set(group.ranks) != {group.ranks[group.rank]} or not torch.equal(
        replicas.all_gather(mine).view(-1, 2), mine.expand(replicas.size, 2)
    ):
        raise ValueError(
            f"replicas={list(replicas.ranks)} of shards over {list(group.ranks)}: they have the "
            "same number in groups of the same size, and only this rank is in both; for hosts of 4 "
            "ranks world.split(rank // 4) shards, and world.split(rank % 4) replicates"
        )


def across(replicas: Group, wire: Wire) -> Wire:
    """`wire`, whose reduce-scatter sums over the ranks that hold the same shard, too.

    Wire, besides: 2(m-1)/m of a shard's bytes, with m replicas.
    """

    def reduce_scatter(flat: Tensor, group: Group, *, in_place: bool = False) -> Done:
        own = wire.reduce_scatter(flat, group, in_place=in_place).wait()
        with replicas.label("gradients of replicas"):
            replicas.all_reduce(own, out=own)
        return Done(own)

    return wire._replace(reduce_scatter=reduce_scatter)
