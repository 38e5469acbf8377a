"""Bytes, messages, steps and seconds of an all-reduce over two tiers of links, and of a flat ring.

L ranks on each of H hosts, n = L * H, D bytes; rank r is number r % L on host r // L. By
BlueConnect's account: a reduce-scatter within each host leaves every rank with D/L, the ranks with
the same D/L all-reduce it between the hosts, and an all-gather within each host ends it.

    per rank              fast                    slow
    steps, messages       2(L-1)                  2(H-1)
    sent bytes            2(L-1)/L D              2(H-1)/H D/L
    flat ring             2(n-1)/n D, or none     2(n-1)/n D for the last rank of a host, or none

`alpha` and `beta` are pairs here, (fast, slow): seconds per message, and per byte. A ring over all
ranks, host after host, has H slow links in it. A rank sends in each step what came in the one
before, so the whole ring goes at the pace of the slow links: 2(n-1) (alpha_slow + D/n beta_slow).

Where the ranks of a host share one adapter, all L of them send over it at once in the slow phase,
each at 1/L of its speed; of a flat ring only one does. What is left to gain is latency, and
(H-1)/H against (n-1)/n of the bytes.

Paper: Cho et al., "BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network
hierarchy", SysML 2019.
"""

from collections.abc import Sequence

from labkit.calc.alpha_beta import all_reduce_seconds
from labkit.calc.traffic.checks import check_itemsize, check_links, check_not_negative
from labkit.calc.traffic.ring_traffic import ring_all_reduce_sent_bytes
from labkit.calc.traffic.segments import segment_numels
from labkit.calc.traffic.tiers import Tiers, num_hosts, place_of


def hierarchical_all_reduce_sent_bytes(
    numel: int, itemsize: int, world_size: int, rank: int, ranks_per_host: int
) -> Tiers[int]:
    """Exact bytes that `rank` sends on links of each tier, for any numel from 0.

    10 float32 on 2 hosts of 2: every rank carries 5 elements across. Rank 0 sends 5 + 5 to its
    neighbour and 2 + 3 to rank 2: Tiers(fast=40, slow=20).
    """
    host, place = place_of(rank, world_size, ranks_per_host)
    itemsize = check_itemsize(itemsize)
    segments = segment_numels(numel, ranks_per_host)
    pieces = segment_numels(segments[place], num_hosts(world_size, ranks_per_host))
    return Tiers(
        fast=itemsize * _passed_on_twice(segments, place),
        slow=itemsize * _passed_on_twice(pieces, host),
    )


def _passed_on_twice(parts: Sequence[int], member: int) -> int:
    """What a member of a ring sends: on the first round all parts but the one that ends with it,
    on the second all but the one that began at its right neighbour."""
    return 2 * sum(parts) - parts[member] - parts[(member + 1) % len(parts)]


def flat_ring_sent_bytes(
    numel: int, itemsize: int, world_size: int, rank: int, ranks_per_host: int
) -> Tiers[int]:
    """Exact bytes that `rank` sends in one ring over all hosts: over the link that it has.

    The last rank of a host has a slow one (unless there is only one host), the others fast ones.
    """
    _, place = place_of(rank, world_size, ranks_per_host)
    sent = ring_all_reduce_sent_bytes(numel, itemsize, world_size, rank)
    crosses = place == ranks_per_host - 1 and ranks_per_host < world_size
    return Tiers(fast=0, slow=sent) if crosses else Tiers(fast=sent, slow=0)


def hierarchical_all_reduce_steps(world_size: int, ranks_per_host: int) -> Tiers[int]:
    """Steps one after the other. 8 ranks, 4 per host: 6 fast and 2 slow, a flat ring takes 14."""
    hosts = num_hosts(world_size, ranks_per_host)
    return Tiers(fast=2 * (ranks_per_host - 1), slow=2 * (hosts - 1))


def hierarchical_all_reduce_messages(world_size: int, ranks_per_host: int) -> Tiers[int]:
    """Messages that one rank sends: one per step."""
    return hierarchical_all_reduce_steps(world_size, ranks_per_host)


def hierarchical_all_reduce_seconds(
    nbytes: float,
    n: int,
    ranks_per_host: int,
    alpha: tuple[float, float],
    beta: tuple[float, float],
    *,
    shared: bool = False,
) -> float:
    """Seconds of the three phases, one after the other. alpha, beta: (fast, slow).

    shared: the ranks of a host send to other hosts over one link, not each over one of its own.
    1 GB, 8 ranks, 4 per host, 300 GB/s inside and 25 GB/s across: 15 ms; shared: 45 ms.
    """
    check_links(alpha, beta)
    check_not_negative(nbytes, "nbytes")
    hosts = num_hosts(n, ranks_per_host)
    on_the_slow_link = nbytes if shared else nbytes / ranks_per_host
    within = all_reduce_seconds(nbytes, ranks_per_host, alpha[0], beta[0])
    return within + all_reduce_seconds(on_the_slow_link, hosts, alpha[1], beta[1])


def flat_ring_seconds(
    nbytes: float,
    n: int,
    ranks_per_host: int,
    alpha: tuple[float, float],
    beta: tuple[float, float],
) -> float:
    """Seconds of one ring over all hosts, shared adapters or not. alpha, beta: (fast, slow).

    1 GB, 8 ranks, 4 per host, 300 GB/s inside and 25 GB/s across: 70 ms.
    """
    check_links(alpha, beta)
    check_not_negative(nbytes, "nbytes")
    hosts = num_hosts(n, ranks_per_host)
    tiers = [0] * (ranks_per_host > 1) + [1] * (hosts > 1)
    return max((all_reduce_seconds(nbytes, n, alpha[t], beta[t]) for t in tiers), default=0.0)


def hierarchical_speedup(
    nbytes: float,
    n: int,
    ranks_per_host: int,
    alpha: tuple[float, float],
    beta: tuple[float, float],
    *,
    shared: bool = False,
) -> float:
    """How many times as long a flat ring takes over the same links; 1 where nobody sends.

    The example above: 4.67 times; with a shared link 1.56 times. Below 1, the hierarchy loses.
    """
    flat = flat_ring_seconds(nbytes, n, ranks_per_host, alpha, beta)
    tiered = hierarchical_all_reduce_seconds(nbytes, n, ranks_per_host, alpha, beta, shared=shared)
    return flat / tiered if tiered else 1.0
