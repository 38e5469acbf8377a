"""Hosts, ranks and the links between them, to which `run(..., topology=...)` throttles messages.

    from labkit import FatTree, Link, Topology
    topology = Topology(
        hosts=2, ranks_per_host=4, fast=Link(400e6, 20e-6), slow=Link(20e6, 200e-6)
    )
    labkit.run(step, world_size=8, topology=topology)

           host 0                        host 1
      rank 0   1   2   3            rank 4   5   6   7
           |   |   |   |   fast          |   |   |   |      each rank has one
           +---+---+---+                 +---+---+---+
                 |           slow              |            each host has slow_links_per_host
                 +-----------------------------+

Every link is full duplex: sending and receiving do not disturb each other. Links are equal, until
one is degraded: `topology.degraded("rank 2", 0.25)` is the same with a quarter of the bandwidth
there. throttle.py says which messages are throttled.

A fat tree has three tiers: hosts under leaf switches, leaves in pods, a core above.

    tree = FatTree(hosts=8, hosts_per_leaf=2, leaves_per_pod=2, slow=Link(20e6, 200e-6))
    labkit.run(step, world_size=8, topology=tree.degraded("leaf 1", 0.25))

                         core                        an uplink of a pod carries 80 MB/s,
               +----------+----------+
             pod 0                 pod 1             an uplink of a leaf 40 MB/s,
           +---+---+             +---+---+
        leaf 0   leaf 1       leaf 2   leaf 3        a host's link 20 MB/s
        +-+-+    +-+-+        +-+-+    +-+-+
        0   1    2   3        4   5    6   7         hosts, each with one rank

All hosts below a switch share its uplink, which carries them all at full speed: the tree is "fat".
Degraded to a quarter, the uplink of leaf 1 carries 10 MB/s: half of a host's speed. A real leaf has
many uplinks, over which flows are spread by a hash (ECMP). Here they are one, the sum of them, so
two flows that choose the same uplink cannot be seen.

Leiserson, "Fat-trees: universal networks for hardware-efficient supercomputing", IEEE Transactions
on Computers 34(10), 1985; Al-Fares et al., "A scalable, commodity data center network
architecture", SIGCOMM 2008.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from labkit import arguments

_SLOWEST, _FASTEST = 1e-3, 1e18  # bytes per second; beyond these, times overflow
_LONGEST_LATENCY_S = 10.0
_MOST_RANKS = 1_000_000
_WORLD = f"a run has from 1 to {_MOST_RANKS:,} ranks"


@dataclass(frozen=True, slots=True)
class Link:
    """A link: a message of m bytes takes latency_s + m / bandwidth_bytes_per_s, either way.

    `Link(1.25e9, 50e-6)` is 10 Gbit/s Ethernet: speeds of networks are given in bits. Printed, a
    link shows both. TypeError and ValueError for what is no bandwidth or no latency.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        arguments.number(
            "bandwidth_bytes_per_s",
            self.bandwidth_bytes_per_s,
            f"a link carries a finite number of bytes per second, from {_SLOWEST:g} to "
            f"{_FASTEST:g}, such as 1.25e9 for 10 Gbit/s; where there is no link, leave it out",
            least=_SLOWEST,
            most=_FASTEST,
        )
        arguments.number(
            "latency_s",
            self.latency_s,
            f"give seconds from 0 to {_LONGEST_LATENCY_S:g}; 50 us are 50e-6",
            least=0,
            most=_LONGEST_LATENCY_S,
        )

    @property
    def alpha(self) -> float:
        """Seconds of a message without bytes: the latency."""
        return self.latency_s

    @property
    def beta(self) -> float:
        """Seconds per byte: one over the bandwidth."""
        return 1 / self.bandwidth_bytes_per_s

    def seconds(self, nbytes: float) -> float:
        """Return seconds of one message that has the link to itself: alpha + nbytes * beta."""
        return self.alpha + nbytes * self.beta

    def __str__(self) -> str:
        """`1.25 GB/s (10 Gbit/s), 50 us`."""
        return f"{speed_text(self.bandwidth_bytes_per_s)}, {self.latency_s * 1e6:g} us"


class Tier(NamedTuple):
    """Links of one kind: each node of a tier has `links` of them, its ranks share them equally."""

    node: str
    """rank, host, leaf or pod."""
    ranks: int
    """Below a node."""
    links: int
    bandwidth_bytes_per_s: float
    """Bandwidth of each link; infinite: not throttled."""


class Port(NamedTuple):
    """One direction of a link, which messages pass in turn."""

    number: int
    """From 0 for ports up to a switch; num_ports more for the same port down from it."""
    beta: float
    """Seconds per byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Equal hosts with equal ranks: fast links inside a host, slow ones between hosts.

    Ranks are numbered host by host, as torchrun does it: of 2 hosts with 4 ranks each, host 1 has
    ranks 4 to 7.

    fast: what each rank has for its messages inside the host. None: nothing is throttled there, and
    messages (or shared memory) are as fast as the machine.
    slow: what a host has for messages to other hosts. None where there is one host only.
    slow_links_per_host: 1, shared by all ranks of the host; up to ranks_per_host, one for each.
    Neighbouring ranks share one, so it divides ranks_per_host.
    degradations: links with a part of their bandwidth, and which part: see `degraded`.

    TypeError and ValueError for numbers that fit no machine, and where hosts have no link.
    """

    hosts: int
    ranks_per_host: int
    fast: Link | None = None
    slow: Link | None = None
    slow_links_per_host: int = 1
    degradations: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for name in ("hosts", "ranks_per_host", "slow_links_per_host"):
            allowed = f"there is at least 1, and at most {_MOST_RANKS:,}"
            arguments.whole(name, getattr(self, name), allowed, most=_MOST_RANKS)
        if self.world_size > _MOST_RANKS:
            raise ValueError(
                f"hosts={self.hosts} with ranks_per_host={self.ranks_per_host} make "
                f"{self.world_size:,} ranks; give {_MOST_RANKS:,} or fewer"
            )
        for name, link in (("fast", self.fast), ("slow", self.slow)):
            if link is not None and not isinstance(link, Link):
                raise TypeError(f"{name}={link!r}: give a Link, such as Link(1.25e9, 50e-6)")
        if self.slow is None and self.hosts > 1:
            raise ValueError(f"{self.hosts} hosts need links to each other: slow=Link(...)")
        if self.fast is None and self.hosts == 1:
            raise ValueError("one host without a fast link has nothing to throttle: fast=Link(...)")
        if self.ranks_per_host % self.slow_links_per_host:
            fitting = arguments.divisors(self.ranks_per_host)
            raise ValueError(
                f"slow_links_per_host={self.slow_links_per_host} cannot be shared equally by "
                f"{self.ranks_per_host} ranks; it can be {', '.join(map(str, fitting))}"
            )

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return self.hosts * self.ranks_per_host

    def host_of(self, rank: int) -> int:
        """The host that a rank is on, from 0. ValueError for a rank that is not there."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not there: ranks are 0 to {self.world_size - 1}")
        return rank // self.ranks_per_host

    def link_between(self, a: int, b: int) -> Link | None:
        """Return the link for messages between ranks `a` and `b` alone. None: no throttle.

        The bandwidth is that of the narrowest link on the way. ValueError for a rank to itself.
        """
        if a == b:
            raise ValueError(f"rank {a} to rank {b}: a rank has no link to itself")
        link = self.fast if self.host_of(a) == self.host_of(b) else self.slow
        if link is None:
            return None
        slowest = max(port.beta for port in self.path(a, b))
        return link if slowest <= link.beta else replace(link, bandwidth_bytes_per_s=1 / slowest)

    def path(self, a: int, b: int) -> tuple[Port, ...]:
        """The ports that a message from rank `a` to rank `b` passes, in order, where it has a link.

        Inside a host: out of a, into b. Otherwise: out of a's host and up to the first switch that
        is above both, then down and into b's host.
        """
        first, *above = self._tiers
        if self.host_of(a) != self.host_of(b):
            tiers = [tier for tier in above if a // tier.ranks != b // tier.ranks]
        else:
            tiers = [first]
        up = [self._port(tier, a) for tier in tiers]
        down = [self._port(tier, b) for tier in reversed(tiers)]
        return (*up, *(port._replace(number=self.num_ports + port.number) for port in down))

    @property
    def num_ports(self) -> int:
        """The ports of all links, in each direction."""
        return sum(self.world_size * tier.links // tier.ranks for tier in self._tiers)

    def degraded(self, link: str, share: float) -> Self:
        """Return the topology with one link at this share of its bandwidth, both ways.

        link: "rank 2" is the fast link of a rank, "host 1" are the slow links of a host. Raises
        ValueError for an unknown link or an impossible share, TypeError if it is no number.
        """
        self.ranks_below(link)
        left = f"{link} keeps a share of its bandwidth, from 0.001 to 1"
        arguments.number("share", share, left, least=1e-3, most=1)
        others = tuple(each for each in self.degradations if each[0] != link)
        return replace(self, degradations=(*others, (link, share)))

    def ranks_below(self, link: str) -> range:
        """The ranks whose messages pass a link by this name. ValueError where there is none."""
        names = []
        for tier in self._tiers:
            number = self.world_size // tier.ranks
            if tier.bandwidth_bytes_per_s == math.inf or number == 1:
                continue  # no message leaves the only node
            for node in range(number):
                if link == f"{tier.node} {node}":
                    return range(node * tier.ranks, (node + 1) * tier.ranks)
            names.append(f"'{tier.node} 0' to '{tier.node} {number - 1}'")
        raise ValueError(f"there is no link {link!r}; there are {', '.join(names)}")

    @property
    def _tiers(self) -> tuple[Tier, ...]:
        """From below: links inside hosts, then those between them."""
        fast, slow = (
            link.bandwidth_bytes_per_s if link else math.inf for link in (self.fast, self.slow)
        )
        return (
            Tier("rank", 1, 1, fast),
            Tier("host", self.ranks_per_host, self.slow_links_per_host, slow),
        )

    def _port(self, tier: Tier, rank: int) -> Port:
        """Return the port up from a rank, or from its host, leaf or pod."""
        below = self._tiers[: self._tiers.index(tier)]
        first = sum(self.world_size * each.links // each.ranks for each in below)
        share = dict(self.degradations).get(f"{tier.node} {rank // tier.ranks}", 1)
        beta = 1 / (tier.bandwidth_bytes_per_s * share)
        return Port(first + rank * tier.links // tier.ranks, beta)

    def check_world_size(self, world_size: int) -> None:
        """Raises ValueError, with the choices, unless these are the ranks of this topology."""
        world_size = arguments.whole("world_size", world_size, _WORLD, most=_MOST_RANKS)
        if world_size == self.world_size:
            return
        choices = [
            f"hosts={hosts}, ranks_per_host={world_size // hosts}"
            for hosts in arguments.divisors(world_size)
        ]
        raise ValueError(
            f"world_size={world_size}, but this topology has {self.hosts} x {self.ranks_per_host} "
            f"= {self.world_size} ranks. Start {self.world_size} ranks, or make it "
            + " or ".join(choices)
        )

    def __str__(self) -> str:
        """Its hosts and links, in a line each."""
        lines = [
            f"{self.hosts} host{'s' * (self.hosts > 1)} with {self.ranks_per_host} "
            f"rank{'s' * (self.ranks_per_host > 1)} each"
        ]
        if self.ranks_per_host > 1:
            its_own = "each rank has one"
            inside = "as fast as the machine" if self.fast is None else f"{self.fast}; {its_own}"
            lines.append(f"inside a host:  {inside}")
        if self.hosts > 1:
            lines.append(f"between hosts:  {self.slow}; {self._sharing}")
        for link, share in self.degradations:
            lines.append(f"degraded:       {link}, to {100 * share:.3g}%")
        return "\n  ".join(lines)

    @property
    def _sharing(self) -> str:
        links, sharers = self.slow_links_per_host, self.ranks_per_host // self.slow_links_per_host
        if sharers == 1:
            return "each rank has one"
        return f"each host has {links}, {sharers} ranks share {'it' if links == 1 else 'one'}"


@dataclass(frozen=True, kw_only=True)
class FatTree(Topology):
    """Hosts whose slow links lead to leaf switches, with uplinks that they share.

    hosts, slow and the other arguments are a Topology's. `slow` is a host's link to its leaf; a
    message that has the network to itself takes its latency, however far it goes.
    hosts_per_leaf, leaves_per_pod: each divides what is above it. One pod: a tree of two tiers.
    oversubscription: bandwidth of a leaf's hosts over that of its uplink. 1: non-blocking. Of 4
    hosts at 4:1 one can send upwards at full speed, or all four at a quarter. The uplink of a pod
    carries what the uplinks of its leaves carry.

    Links to degrade: "host 5", "leaf 2", "pod 0". Their ranks: `ranks_below`.
    TypeError and ValueError for numbers that fit no tree.
    """

    ranks_per_host: int = 1
    hosts_per_leaf: int
    leaves_per_pod: int
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hosts == 1:
            raise ValueError("hosts=1: a tree has 2 hosts or more; of one, make a Topology")
        self._check_part("hosts_per_leaf", "hosts", self.hosts)
        self._check_part("leaves_per_pod", "leaves", self.num_leaves)
        allowed = "the bandwidth below a leaf over that above it, such as 4 for 4:1"
        arguments.number("oversubscription", self.oversubscription, allowed, least=1e-3, most=1e3)

    def _check_part(self, name: str, of: str, number: int) -> None:
        fitting = ", ".join(map(str, arguments.divisors(number)))
        allowed = f"{number} {of} are shared out equally by {fitting}"
        if number % arguments.whole(name, getattr(self, name), allowed):
            raise ValueError(f"{name}={getattr(self, name)}: {allowed}")

    @property
    def num_leaves(self) -> int:
        """In all pods."""
        return self.hosts // self.hosts_per_leaf

    @property
    def num_pods(self) -> int:
        """Below the core."""
        return self.num_leaves // self.leaves_per_pod

    @property
    def _tiers(self) -> tuple[Tier, ...]:
        rank, host = super()._tiers
        ranks = self.hosts_per_leaf * host.ranks
        below = self.hosts_per_leaf * host.links * host.bandwidth_bytes_per_s
        uplink = below / self.oversubscription
        leaf = Tier("leaf", ranks, 1, uplink)
        pod = Tier("pod", self.leaves_per_pod * ranks, 1, self.leaves_per_pod * uplink)
        return rank, host, leaf, pod

    def __str__(self) -> str:
        """Its hosts, links and uplinks, in a line each."""
        *_, leaf, pod = self._tiers
        lines = [
            super().__str__(),
            f"leaf switches:  {self.num_leaves}, hosts per leaf: {self.hosts_per_leaf}, uplink "
            f"{speed_text(leaf.bandwidth_bytes_per_s)}, {self.oversubscription:g}:1",
            f"pods:           {self.num_pods}, leaves per pod: {self.leaves_per_pod}, uplink "
            f"{speed_text(pod.bandwidth_bytes_per_s)}",
        ]
        return "\n  ".join(lines)


def speed_text(bytes_per_s: float) -> str:
    """Return a bandwidth as text: `1.25 GB/s (10 Gbit/s)`."""
    return f"{_scaled(bytes_per_s)}B/s ({_scaled(8 * bytes_per_s)}bit/s)"


def _scaled(value: float) -> str:
    """Return a number to go before a unit: `1.25 G`."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g} "
