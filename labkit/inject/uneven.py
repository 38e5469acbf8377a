"""Faults in how work and messages are cut. Each says what a diagnosis should find.

fault            what it does                                         cause
UnevenShards     one rank's batches have more rows                    imbalance
SkewedRouter     one rank's experts get more tokens                   imbalance
UnbalancedStage  one stage has one more layer                         imbalance
TinyBuckets      an all-reduce for every parameter                    latency
OneHugeBucket    one all-reduce for all of them, after backward       overlap
SlowLink         a rank's link has a part of its bandwidth            link, of this rank
SlowUplink       a leaf switch's uplink, for all hosts below it       link, of no rank

The last two are faults of a topology, to which `run(..., topology=)` throttles messages:

    labkit.run(train, 4, topology=inject.SlowLink(rank=2).on(topology))
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from labkit.comm import FatTree, Group, Topology
from labkit.data_parallel import DDP
from labkit.inject.slow import Fault
from labkit.moe.router import TopKRouter
from labkit.pipeline import Pipeline


@dataclass(frozen=True)
class UnevenShards(Fault):
    """A DataLoader's batches have `share` more rows, some of them twice: 0.2 is 12 rows for 10."""

    cause = "imbalance"
    share: float = 0.2

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """For batches that are lists of tensors, in iterations that begin inside."""
        batches = DataLoader.__iter__

        def longer(loader: DataLoader) -> Iterator[list[Tensor]]:
            for tensors in batches(loader):
                more = round(self.share * len(tensors[0]))
                yield [torch.cat([each, each[:more]]) for each in tensors]

        with mock.patch.object(DataLoader, "__iter__", longer):
            yield


@dataclass(frozen=True)
class SkewedRouter(Fault):
    """Some tokens of all ranks go to `rank`'s first expert: it gets `share` more than its part."""

    cause = "imbalance"
    is_everywhere = True
    rank: int = 0
    share: float = 0.2

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """For routers that choose by their scores, with experts dealt out evenly to the world."""
        preference = TopKRouter.preference

        def skewed(router: TopKRouter, probs_NE: Tensor) -> Tensor:
            preferred_NE = preference(router, probs_NE).clone()
            expert = self.rank * router.num_experts // world.size
            others = (preferred_NE.argmax(1) != expert).nonzero()[:, 0]
            moved = others[: round(self.share * len(probs_NE) / router.num_experts)]
            preferred_NE[moved, expert] = 2.0  # more than any probability
            return preferred_NE

        with mock.patch.object(TopKRouter, "preference", skewed):
            yield


@dataclass(frozen=True)
class UnbalancedStage(Fault):
    """The stage of one rank has one more layer, a copy of its last one."""

    cause = "imbalance"

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """For a Pipeline that is made inside, of stages that are Sequential."""
        init = Pipeline.__init__

        def longer(pipeline: Pipeline, schedule: Any, stages: Any, *args: Any, **kw: Any) -> None:
            grown = {n: nn.Sequential(*s, copy.deepcopy(s[-1])) for n, s in stages.items()}
            init(pipeline, schedule, grown, *args, **kw)

        with mock.patch.object(Pipeline, "__init__", longer):
            yield


@dataclass(frozen=True)
class _Buckets(Fault):
    """DDP's buckets have a size of the fault's choice."""

    bucket_bytes = 0

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """For a DDP that is made inside."""
        init = DDP.__init__

        def other(ddp: DDP, *args: Any, **kw: Any) -> None:
            init(ddp, *args, **kw | {"bucket_bytes": self.bucket_bytes})

        with mock.patch.object(DDP, "__init__", other):
            yield


@dataclass(frozen=True)
class TinyBuckets(_Buckets):
    """A bucket for each parameter: as many all-reduces, each with its latency."""

    cause = "latency"
    bucket_bytes = 1


@dataclass(frozen=True)
class OneHugeBucket(_Buckets):
    """All gradients in one bucket, which is full when backward ends."""

    cause = "overlap"
    bucket_bytes = 2**40


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
