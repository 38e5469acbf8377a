"""Faults of the network: some links have a part of their bandwidth.

fault            what it does                                         cause
SlowLink         a rank's link, both ways                             link, of this rank
SlowUplink       the uplink of a leaf switch, for all hosts below it  link, of no rank

They are faults of a topology, to which `run(..., topology=)` throttles messages:

    labkit.run(train, 4, topology=inject.SlowLink(rank=2).on(topology))
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.comm import FatTree, Topology
from labkit.inject.slow import Fault


@dataclass(frozen=True)
class NetworkFault(Fault):
    """Links with `share` of their bandwidth."""

    cause = "link"
    share: float = 0.1

    def on(self, topology: Topology) -> Topology:
        """The same network with the fault. ValueError where it has no such link."""
        raise NotImplementedError


@dataclass(frozen=True)
class SlowLink(NetworkFault):
    """The link of the rank's host, or its own inside a single host."""

    def on(self, topology: Topology) -> Topology:
        """The same network with the fault. ValueError where it has no such link."""
        assert self.rank is not None
        host = topology.host_of(self.rank)
        link = f"host {host}" if topology.hosts > 1 else f"rank {self.rank}"
        return topology.degraded(link, self.share)


@dataclass(frozen=True)
class SlowUplink(NetworkFault):
    """The uplink of a leaf switch of a FatTree."""

    leaf: int = 0

    def on(self, topology: Topology) -> Topology:
        """The same network with the fault. ValueError where it has no such link."""
        assert isinstance(topology, FatTree), "only a FatTree has leaf switches"
        return topology.degraded(f"leaf {self.leaf}", self.share)
