"""Measure a network: the bandwidth of every pair of ranks, and uplinks that no pair shows.

    tree = FatTree(hosts=16, hosts_per_leaf=4, leaves_per_pod=2, slow=Link(20e6, 200e-6))
    degraded = tree.degraded("leaf 1", 0.25)
    print(measure.pairs(16, topology=degraded).table())      # 20 MB/s everywhere
    print(measure.bisect_uplinks(degraded).table())          # leaf 1, in 3 measurements

                pairs                          simultaneous traffic
        |         20 MB/s         |            |         20 MB/s         |   of 80 MB/s an
     ---+---                   ---+---      ---+---                   ---+---    uplink has 20:
     | | | |    -- 20 -->      | | | |      | | | |   -- 4 x 5 -->    | | | |    enough for one

One host at a time shows its own slow link, but never a slow uplink, because one of four hosts uses
at most a quarter of the uplink. Many hosts at once show that an uplink is slow, but not which. So
half of the leaves send at once, then half of the half that is slow. One of n leaves is found in
ceil(log2(n)) measurements, and one more says whether any is slow.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from labkit import arguments
from labkit.calc.units import seconds_text, size_text
from labkit.comm import FatTree, Group, Topology
from labkit.launch import launch
from labkit.measure.measured import aligned
from labkit.measure.sweep import checked_sizes

if TYPE_CHECKING:
    from labkit.viz.picture import Picture

Pair = tuple[int, int]
"""Two ranks, the lower one first."""
SLOW = 1.5
"""Traffic is slow if it takes this many times as long as on healthy uplinks."""
_REPETITIONS = 3
_CALLS = "messages are counted, from 1; the fastest counts, so try 3"


@dataclass(frozen=True)
class Pairs:
    """Measured messages of every pair of ranks on its own."""

    world_size: int
    nbytes: int
    """Bytes of a message."""
    rounds: tuple[tuple[Pair, ...], ...]
    """Pairs that were measured at the same time."""
    seconds: dict[Pair, float]
    """Seconds of a message, one way: half of the fastest round trip."""
    topology: Topology | None = None

    def bytes_per_s(self, a: int, b: int) -> float:
        """Bandwidth between two ranks, latency included."""
        return self.nbytes / self.seconds[min(a, b), max(a, b)]

    def of_rank(self, rank: int) -> float:
        """Return the median bandwidth of a rank's pairs, which is low if its own link is slow."""
        others = (other for other in range(self.world_size) if other != rank)
        return statistics.median(self.bytes_per_s(rank, other) for other in others)

    @property
    def slowest(self) -> Pair:
        """The pair with the least bandwidth."""
        return max(self.seconds, key=lambda pair: self.seconds[pair])

    @property
    def spread(self) -> float:
        """The fastest pair's bandwidth over the slowest one's. 1: an even network."""
        return max(self.seconds.values()) / min(self.seconds.values())

    def table(self) -> str:
        """Bandwidths in MB/s, a row and a column per rank, as aligned plain text."""
        ranks = range(self.world_size)
        rows = [["MB/s", *map(str, ranks), "median"]]
        for a in ranks:
            cells = ["." if a == b else f"{self.bytes_per_s(a, b) / 1e6:.4g}" for b in ranks]
            rows.append([f"rank {a}", *cells, f"{self.of_rank(a) / 1e6:.4g}"])
        return (
            f"{len(self.seconds)} pairs in {len(self.rounds)} rounds, messages of "
            f"{size_text(self.nbytes)}; fastest over slowest: {self.spread:.2f}\n\n"
            + aligned(rows, left=1)
        )

    def draw(self, title: str | None = None) -> Picture:
        """Return the table as a heat map, with the slow pairs shaded."""
        from labkit.viz.performance import bandwidth_map  # viz loads matplotlib

        speeds = {pair: self.bytes_per_s(*pair) for pair in self.seconds}
        tree, leaves = self.topology, []
        if isinstance(tree, FatTree) and tree.num_leaves > 1:
            leaves = [tree.ranks_below(f"leaf {leaf}") for leaf in range(tree.num_leaves)]
        return bandwidth_map(speeds, groups=leaves, title=title)

    def show(self) -> None:
        """Show the picture: in the notebook, or, outside of one, as a file."""
        self.draw().show()


def pairs(
    world_size: int,
    *,
    nbytes: int | str = "256 KiB",
    topology: Topology | None = None,
    repetitions: int = _REPETITIONS,
    timeout: float = 120,
) -> Pairs:
    """Measure the bandwidth of every pair of ranks: messages there and back, the fastest counts.

    nbytes: of a message, as a number or as text. topology: throttled links to measure on.
    repetitions: messages there and back per pair. timeout: of the run.

    The pairs of a round are measured at once without disturbing each other: they share no rank
    and, in a topology, no link. Without shared links it is a round-robin tournament: n - 1 rounds
    for n ranks, n for an odd number, in which each rank sits out once.

    Raises ValueError or TypeError for arguments that cannot be measured, and what labkit.run
    raises.
    """
    world_size = arguments.whole("world_size", world_size, "a pair has 2 ranks or more", least=2)
    (nbytes,) = checked_sizes([nbytes])
    rounds = rounds_of_pairs(world_size, topology)
    args = (rounds, nbytes, repetitions)
    result = launch(
        pairs_on_rank, world_size, [args], topology=topology, timeout=timeout, device="cpu"
    )
    seconds = {pair: result.values[pair[0]][pair] for pair in sorted(sum(rounds, ()))}
    return Pairs(world_size, nbytes, rounds, seconds, topology)


def rounds_of_pairs(n: int, topology: Topology | None = None) -> tuple[tuple[Pair, ...], ...]:
    """Return every pair of n ranks once, in rounds whose pairs share neither a rank nor a link.

        round 0    0 1 2     round 1    0 5 1    one keeps its place, the others move on by one;
                   5 4 3                4 3 2    those above each other are a pair

    ValueError if the topology has other ranks.
    """
    if topology is not None:
        topology.check_world_size(n)
    rounds: list[tuple[set[int], list[Pair]]] = []
    for a, b in _tournament(n):
        ports = {-1 - a, -1 - b}  # the ranks themselves: besides ports, which count from 0
        if topology is not None and topology.link_between(a, b) is not None:
            there, back = topology.path(a, b), topology.path(b, a)
            ports.update(port.number for port in (*there, *back))
        for taken, members in rounds:
            if not taken & ports:
                taken |= ports
                members.append((a, b))
                break
        else:
            rounds.append((ports, [(a, b)]))
    return tuple(tuple(members) for _, members in rounds)


def _tournament(n: int) -> Iterator[Pair]:
    """Yield all pairs in order of the rounds of a round-robin tournament (the circle method)."""
    places = list(range(n + n % 2))  # with an odd n, the partner of one more sits out
    for _ in range(len(places) - 1):
        for a, b in zip(places[: len(places) // 2], reversed(places)):
            if max(a, b) < n:
                yield min(a, b), max(a, b)
        places.insert(1, places.pop())


def pairs_on_rank(
    world: Group, rounds: Sequence[Sequence[Pair]], nbytes: int, repetitions: int
) -> dict[Pair, float]:
    """On every rank: seconds one way, of each of its pairs."""
    x, seconds = torch.zeros(nbytes, dtype=torch.uint8, device=world.device), {}
    for members in rounds:
        world.barrier()
        for pair in members:
            if world.rank in pair:
                seconds[pair] = min(_there_and_back(world, pair, x) for _ in range(repetitions)) / 2
    return seconds


def _there_and_back(world: Group, pair: Pair, x: torch.Tensor) -> float:
    first, second = pair
    began_s = time.perf_counter()
    if world.rank == first:
        world.send(x, second)
        world.recv(x, second)
    else:
        world.recv(x, first)
        world.send(x, first)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)  # nccl returns before the bytes have moved
    return time.perf_counter() - began_s


class Traffic(NamedTuple):
    """One measurement: all hosts below these leaves sent at once."""

    leaves: tuple[int, ...]
    seconds: float
    """Until the last message was there."""


@dataclass(frozen=True)
class Bisection:
    """The degraded uplink, and the measurements that found it."""

    leaf: int | None
    """None: all uplinks carry what they should."""
    measurements: tuple[Traffic, ...]
    healthy_s: float
    """Seconds of such traffic if no uplink is degraded."""

    def table(self) -> str:
        """Return a row per measurement, as aligned plain text."""
        rows = [["leaves that send", "time", "of a healthy one", ""]]
        for leaves, seconds in self.measurements:
            times = seconds / self.healthy_s
            names = ", ".join(map(str, leaves))
            is_slow = "slow" if times > SLOW else ""
            rows.append([names, seconds_text(seconds), f"{times:.2f} x", is_slow])
        found = "no uplink is degraded" if self.leaf is None else f"leaf {self.leaf} is degraded"
        return f"{found}: {len(self.measurements)} measurements\n\n{aligned(rows, left=1)}"


def bisect_uplinks(
    topology: FatTree,
    *,
    nbytes: int | str = "512 KiB",
    repetitions: int = _REPETITIONS,
    timeout: float = 120,
) -> Bisection:
    """Find the leaf whose uplink is degraded, by traffic of ever fewer leaves at once.

    In a measurement every rank below the chosen leaves sends nbytes to its counterpart below the
    next one, in a circle, so that each uplink carries all that its leaf can send, both ways. The
    fastest of `repetitions` counts. Of n leaves it takes 1 + ceil(log2(n)), or 1 if none is slow.

    Found is one uplink that is left with less than 1 / SLOW of its bandwidth. A slow link of a host
    would look the same (look at `pairs` first); uplinks of pods are taken to be healthy.

    Raises ValueError for a tree of fewer than 3 leaves: traffic between two of them passes both
    uplinks, and cannot tell them apart; and what labkit.run raises.
    """
    if topology.num_leaves < 3:
        raise ValueError(
            f"a tree of {topology.num_leaves} leaves: traffic between two passes the uplinks of "
            "both, so bisection needs 3 or more; make hosts_per_leaf smaller"
        )
    (nbytes,) = checked_sizes([nbytes])
    assert topology.slow is not None  # which hosts of a tree have
    # Ranks that share a host's link wait for each other, and so do hosts that share an uplink.
    in_turn = topology.ranks_per_host / topology.slow_links_per_host
    healthy_s = topology.slow.seconds(nbytes * in_turn * max(1.0, topology.oversubscription))
    result = launch(
        _bisect_on_rank,
        topology.world_size,
        [(topology, nbytes, repetitions, healthy_s)],
        topology=topology,
        timeout=timeout,
        echo=False,  # ranks agree on times by all_reduce, which is not throttled
    )
    found: Bisection = result.values[0]
    return found


def _bisect_on_rank(
    world: Group, tree: FatTree, nbytes: int, repetitions: int, healthy_s: float
) -> Bisection:
    """On every rank: the same, since all decide by the same times."""
    measurements = []

    def is_slow(leaves: Sequence[int]) -> bool:
        ranks = [tree.ranks_below(f"leaf {leaf}") for leaf in leaves]
        seconds = min(_circle(world, ranks, nbytes) for _ in range(repetitions))
        measurements.append(Traffic(tuple(leaves), seconds))
        return seconds > SLOW * healthy_s

    leaf = bisect(range(tree.num_leaves), is_slow)
    return Bisection(leaf, tuple(measurements), healthy_s)


def _circle(world: Group, leaves: Sequence[range], nbytes: int) -> float:
    """Seconds until every rank has sent to its counterpart below the next leaf."""
    x, buffer = torch.zeros(2, nbytes, dtype=torch.uint8)
    world.barrier()
    began_s = time.perf_counter()
    for ranks, before, behind in zip(leaves, (*leaves[-1:], *leaves), (*leaves[1:], leaves[0])):
        if world.rank in ranks:
            place = ranks.index(world.rank)
            pending = world.irecv(buffer, before[place]), world.isend(x, behind[place])
            for each in pending:
                each.wait()
    seconds = torch.tensor(time.perf_counter() - began_s, dtype=torch.float64)
    return world.all_reduce(seconds, "max").item()


def bisect(leaves: Sequence[int], is_slow: Callable[[Sequence[int]], bool]) -> int | None:
    """Return the one leaf whose traffic is slow, of 3 or more; None where that of all is not.

    is_slow: asked for two leaves or more, whether any of them is slow. A single candidate sends
    together with a leaf that is cleared already.
    """
    if not is_slow(leaves):
        return None
    candidates, cleared = list(leaves), list[int]()
    while len(candidates) > 1:
        middle = (len(candidates) + 1) // 2
        half, rest = candidates[:middle], candidates[middle:]
        partner = cleared[:1] if middle == 1 else []
        if is_slow(half + partner):
            candidates, others = half, rest
        else:
            candidates, others = rest, half
        cleared += others
    return candidates[0]
