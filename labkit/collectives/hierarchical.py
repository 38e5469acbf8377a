"""Hierarchical all-reduce: most bytes travel over fast links, few over slow ones.

Links within a host are fast, links between hosts are slow. One ring over all ranks leaves each host
by one link and runs at that link's speed. Here each tensor is first reduce-scattered within a host,
and every rank sends only its own chunk to other hosts. Two hosts of two ranks, "ab0" = a0 + b0:

                           host 0            host 1
                           rank a   rank b   rank c   rank d
    has                    a0 a1    b0 b1    c0 c1    d0 d1
    reduce-scatter, fast   ab0      ab1      cd0      cd1      within each host
    all-reduce, slow       abcd0    abcd1    abcd0    abcd1    a with c, and b with d
    all-gather, fast       all      all      all      all      within each host

    two_tiers(world, ranks_per_host=2):  fast = {a, b} or {c, d},  slow = {a, c} or {b, d}

L ranks on each of H hosts, n = L * H, D bytes. Steps: 2(L-1) fast ones and 2(H-1) slow ones. A
flat ring's slowest chunk makes 2(n-1) hops, up to 2H of them slow. A rank sends 2(L-1)/L D on fast
links, and 2(H-1)/H of its D/L on slow ones. In one flat ring the last rank of a host sends
2(n-1)/n D on its slow link, (n-1)/(H-1) times as much: 7 times for two hosts of four, about L times
for many hosts. In two cases a hierarchy saves mainly latency. NCCL makes L flat rings, which leave
a host by different ranks, so each rank sends an L-th of that (calc/traffic/rings.py). And if the
ranks of a host share one adapter, it carries D/L for each of L ranks: the factor is at most 2.
Papers: Cho et al., "BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network
hierarchy", SysML 2019. Mikami et al., arXiv:1811.05233 (as a torus).
"""

from collections.abc import Callable

import torch

from labkit import arguments
from labkit.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.collectives.stream import result_like
from labkit.comm import Group, tensor_arguments
from labkit.comm.group import chosen
from labkit.comm.member import messages_of

ReduceScatter = Callable[[torch.Tensor, Group], torch.Tensor]
"""(x, group) -> rank r's chunk of the sum, (chunk numel,), cut as torch.tensor_split does."""
AllReduce = Callable[[torch.Tensor, Group], torch.Tensor]
"""(x, group) -> the sum, of x's shape."""
AllGather = Callable[[torch.Tensor, int, Group], torch.Tensor]
"""(chunk, numel, group) -> every rank's chunk, joined: (numel,)."""


def hierarchical_all_reduce(
    x: torch.Tensor,
    fast: Group,
    slow: Group,
    *,
    out: torch.Tensor | None = None,
    reduce_scatter: ReduceScatter = ring_reduce_scatter,
    all_reduce: AllReduce = ring_all_reduce,
    all_gather: AllGather = ring_all_gather,
) -> torch.Tensor:
    """Return the sum of `x` over all ranks of all hosts, on every rank.

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. The result
    is a new contiguous tensor and x is unchanged, unless out=x asks for the sum in place.
    fast, slow: this rank's two groups, from `two_tiers`. Every rank of `fast` has a `slow` of its
    own. If they are swapped, the sum is right but most bytes travel over the slow links.
    reduce_scatter, all_gather: run within `fast`. If that is one machine, labkit.comm's
    shared_memory_reduce_scatter and shared_memory_all_gather fit. all_reduce: runs within `slow`.

    Wire: 2(L-1)/L of x on fast links, 2(H-1)/(H L) of it on slow ones.
    TypeError for a dtype without a sum and for anything but a group. ValueError for an `out` unlike
    x, and for groups that are not two tiers.
    """
    fast, slow = chosen(fast), chosen(slow)
    _check_tiers(fast, slow)
    tensor_arguments.summable(tensor_arguments.tensor(x, fast))
    target = None if out is None else result_like(x, out, fast)
    with messages_of("hierarchical_all_reduce", x):
        chunk = all_reduce(reduce_scatter(x, fast), slow)
        total = all_gather(chunk, x.numel(), fast).view(x.shape)
    return total if target is None else target.copy_(total)


def two_tiers(world: Group, ranks_per_host: int) -> tuple[Group, Group]:
    """Return (fast, slow): the ranks of this host, and the ranks with this local rank on all hosts.

    Ranks of one host have neighbouring numbers, as torchrun and Slurm number them: with 8 ranks, 4
    per host, rank 5 gets fast = ranks 4 to 7 and slow = ranks 1 and 5. Every rank calls it, once.
    ValueError if ranks_per_host does not divide the number of ranks.
    Wire: two splits.
    """
    world = chosen(world)
    fitting = arguments.divisors(world.size)
    if ranks_per_host not in fitting:
        raise ValueError(
            f"ranks_per_host={ranks_per_host!r} does not divide the {world.size} ranks into hosts "
            f"of equal size; it can be {', '.join(map(str, fitting))}"
        )
    host, local_rank = divmod(world.rank, ranks_per_host)
    fast, slow = world.split(host), world.split(local_rank)
    assert isinstance(fast, Group) and isinstance(slow, Group)  # every rank gave a color
    return fast, slow


def _check_tiers(fast: Group, slow: Group) -> None:
    """Raise ValueError unless this rank is all that both have. (It cannot see unequal hosts.)"""
    common = set(fast.ranks) & set(slow.ranks)
    if common != {fast.ranks[fast.rank]} or fast.ranks[fast.rank] != slow.ranks[slow.rank]:
        raise ValueError(
            f"fast has ranks {list(fast.ranks)} and slow has {list(slow.ranks)}: two tiers share "
            "this rank and no other, or contributions are counted twice; make both with "
            "two_tiers(world, ranks_per_host)"
        )
