"""Hierarchical all-reduce: most of the way over fast links, a small part over slow ones.

Ranks on one host talk fast, hosts talk slowly to each other. One ring over all ranks leaves a host
by one link, and goes at its pace. Here each tensor is first cut up among the ranks of a host, so
that every rank carries its own part, and no more, across. Two hosts of two ranks, "ab" = a + b:

                           host 0            host 1
                           rank a   rank b   rank c   rank d
    has                    a0 a1    b0 b1    c0 c1    d0 d1
    reduce-scatter, fast   ab0      ab1      cd0      cd1      within each host
    all-reduce, slow       abcd0    abcd1    abcd0    abcd1    a with c, and b with d
    all-gather, fast       all      all      all      all      within each host

    two_tiers(world, ranks_per_host=2):  fast = {a, b} or {c, d},  slow = {a, c} or {b, d}

L ranks on each of H hosts, n = L * H, D bytes. Steps: 2(L-1) fast ones and 2(H-1) slow ones; a
flat ring takes 2(n-1), of which 2(H-1) are slow. Sent by a rank: 2(L-1)/L D on fast links, and on
slow ones 2(H-1)/H of its own D/L. In one flat ring the last rank of a host sends 2(n-1)/n D on its
slow link, which is (n-1)/(H-1) times as much: 7 times for two hosts of four, L times for many
hosts. NCCL makes L flat rings, which leave a host by different ranks: then each sends an L-th of
that, and what a hierarchy saves is above all latency (calc/traffic/rings.py). Where
the ranks of a host share one adapter, that carries D/L for each of L ranks: then the factor shrinks
to at most 2, and what is saved is above all latency.
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

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. It is left
    alone, and the result is a new contiguous tensor, unless out=x asks for the sum in place.
    fast, slow: this rank's two groups, from `two_tiers`. Every rank of `fast` has a `slow` of its
    own; given the other way round the sum is right, and the traffic on the wrong links.
    reduce_scatter, all_gather: run within `fast`; those of labkit.comm.shared_memory fit where that
    is one machine. all_reduce: runs within `slow`, on one chunk.

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
    """Return (fast, slow): groups of this rank's host, and of equal places on all hosts.

    Neighbouring numbers are on one host, as torchrun and Slurm number ranks: with 8 ranks, 4 per
    host, rank 5 gets fast = ranks 4 to 7 and slow = ranks 1 and 5. Every rank calls it, once.
    ValueError for a number that does not divide the ranks.
    Wire: two splits.
    """
    world = chosen(world)
    fitting = arguments.divisors(world.size)
    if ranks_per_host not in fitting:
        raise ValueError(
            f"ranks_per_host={ranks_per_host!r} does not divide the {world.size} ranks into hosts "
            f"of equal size; it can be {', '.join(map(str, fitting))}"
        )
    host, place = divmod(world.rank, ranks_per_host)
    fast, slow = world.split(host), world.split(place)
    assert isinstance(fast, Group) and isinstance(slow, Group)  # every rank gave a color
    return fast, slow


def _check_tiers(fast: Group, slow: Group) -> None:
    """Hosts of different sizes cannot be seen from here; a rank that is in both groups can."""
    common = set(fast.ranks) & set(slow.ranks)
    if common != {fast.ranks[fast.rank]} or fast.ranks[fast.rank] != slow.ranks[slow.rank]:
        raise ValueError(
            f"fast has ranks {list(fast.ranks)} and slow has {list(slow.ranks)}: two tiers share "
            "this rank and no other, or contributions are counted twice; make both with "
            "two_tiers(world, ranks_per_host)"
        )
