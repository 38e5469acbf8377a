"""A fat tree of three tiers: hosts under leaf switches, leaves in pods, a core above.

    from labkit import FatTree, Link
    tree = FatTree(hosts=8, hosts_per_leaf=2, leaves_per_pod=2, slow=Link(20e6, 200e-6))
    labkit.run(step, world_size=8, topology=tree.degraded("leaf 1", 0.25))

                         core                        an uplink of a pod carries 80 MB/s,
               +----------+----------+
             pod 0                 pod 1             an uplink of a leaf 40 MB/s,
           +---+---+             +---+---+
        leaf 0   leaf 1       leaf 2   leaf 3        a host's link 20 MB/s
        +-+-+    +-+-+        +-+-+    +-+-+
        0   1    2   3        4   5    6   7         hosts, each with one rank

All hosts below share an uplink. Here they can all send upwards at once at full speed: the tree is
"fat". Degraded to a quarter, the uplink of leaf 1 carries 10 MB/s: half of a host's speed.

A real leaf has many uplinks, over which flows are spread by a hash (ECMP). They are one here, the
sum of them: what happens when two flows choose the same uplink cannot be seen.

Leiserson, "Fat-trees: universal networks for hardware-efficient supercomputing", IEEE Transactions
on Computers 34(10), 1985; Al-Fares et al., "A scalable, commodity data center network
architecture", SIGCOMM 2008.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit import arguments
from labkit.comm.topology import Tier, Topology, speed_text


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
