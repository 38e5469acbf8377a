"""Move weights from the training layout to the serving layout: each rank gets the bytes it needs.

    trainers, ZeRO-3        rank 0: elements 0-17      rank 1: elements 18-35
    generator, 2 heads      rank 2: rows 0-2           rank 3: rows 3-5             of a (6, 6)
    messages                0 -> 2: elements 0-17      1 -> 3: elements 18-35

Every rank describes the shards that it has and those that it wants (labkit/shards.py). From all
descriptions each rank computes the same plan: which elements of which tensor go from whom to whom,
each wanted element once. A trainer sends a message to each generator rank: all its elements in one
row. Where several trainers have an element, generator ranks ask different ones.

All or nothing. A message arrives in memory of its own, and the weights that the engine computes
with stay as they are. `install` copies them when all messages are there, and the engine changes its
version in the same step. An update that breaks off half way leaves the old weights whole.

Wire: a message for each pair of ranks with elements in common; a generator rank receives the size
of its shards. A broadcast of everything sends all parameters to every rank, after an all-gather
between trainers. Paper of the same plan: AReaL, arXiv:2505.24298, and "weight resharding" in verl
(HybridFlow, arXiv:2409.19256, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checkpoint.plain_data import gather_plain
from labkit.comm import Group, Pending
from labkit.shards import Extent, NamedShard

LABEL = "weights of a version"
"""The label of all messages of an update in the journal."""


class WeightSync:
    """The plan of all updates, seen from one rank of `group`: made once, used for each update.

    sends, receives: by rank, the numbers of the elements in this rank's row of sources or targets.
    """

    def __init__(
        self, group: Group, sources: Sequence[NamedShard], targets: Sequence[NamedShard]
    ) -> None:
        """sources: the shards that this rank has. targets: those that it wants.

        Every rank calls it. All are float32. ValueError, on every rank, for a wanted element that
        no rank has. Wire: an all-gather of all descriptions.
        """
        self.group, self.sources, self.targets = group, list(sources), list(targets)
        mine = [_described(self.sources), _described(self.targets)]
        with group.label("layouts of weights"):
            given = gather_plain(mine, group)
        described = [[_read(each) for each in of_rank] for of_rank in given]
        held, wanted = ([of_rank[k] for of_rank in described] for k in (0, 1))
        self.sends: dict[int, Tensor] = {}
        self.receives: dict[int, Tensor] = {}
        for rank in range(group.size):
            plan = _plan(rank, wanted[rank], held)
            if group.rank in plan:
                self.sends[rank] = plan[group.rank][0]
            if rank == group.rank:
                self.receives = {source: there for source, (_, there) in plan.items()}
        self.num_wanted = sum(shard.extent.numel for shard in self.targets)

    @property
    def shards(self) -> list[Tensor]:
        """The tensors of the sources."""
        return [shard.tensor for shard in self.sources]

    @property
    def sent_bytes(self) -> int:
        """Bytes of an update that this rank sends."""
        return 4 * sum(len(n) for rank, n in self.sends.items() if rank != self.group.rank)

    @property
    def received_bytes(self) -> int:
        """Bytes of an update that arrive at this rank: those of its elements that others have."""
        return 4 * sum(len(n) for rank, n in self.receives.items() if rank != self.group.rank)

    def send(self) -> list[Pending[None]]:
        """Start to send this rank's elements as they are now; wait for the result later."""
        if not self.sources:
            return []
        row_N = _row(self.sources)
        with self.group.label(LABEL):
            return [
                self.group.isend(row_N[numbers], rank)
                for rank, numbers in self.sends.items()
                if rank != self.group.rank
            ]

    def receive(self) -> Tensor:
        """Return the elements of all targets in one row, (num_wanted,), when all have arrived.

        The targets are as before. RuntimeError: a sender is gone.
        """
        row_N = torch.empty(self.num_wanted)
        with self.group.label(LABEL):
            pending = {
                rank: self.group.irecv(torch.empty(len(numbers)), rank)
                for rank, numbers in self.receives.items()
                if rank != self.group.rank
            }
        for rank, each in pending.items():
            row_N[self.receives[rank]] = each.wait()
        if (here := self.receives.get(self.group.rank)) is not None:
            row_N[here] = _row(self.sources)[self.sends[self.group.rank]]
        return row_N

    def install(self, row_N: Tensor) -> None:
        """Copy a row of `receive` into the targets."""
        install(self.targets, row_N)


def install(targets: Sequence[NamedShard], row_N: Tensor) -> None:
    """Copy the elements of a row into the tensors of shards, in order."""
    parts = row_N.split([shard.extent.numel for shard in targets])
    with torch.no_grad():
        for shard, part in zip(targets, parts, strict=True):
            shard.tensor.copy_(part.view_as(shard.tensor))


def _row(shards: Sequence[NamedShard]) -> Tensor:
    return torch.cat([shard.tensor.detach().flatten() for shard in shards])


_Held = list[tuple[str, Extent]]


def _described(shards: Sequence[NamedShard]) -> list[Any]:
    return [[shard.name, shard.extent.to_plain()] for shard in shards]


def _read(plain: Sequence[Any]) -> _Held:
    return [(name, Extent.from_plain(extent)) for name, extent in plain]


def _elements(extent: Extent) -> Tensor:
    """Return the number of each element in the whole tensor, row by row."""
    begins, here, lengths = extent.runs()
    return (begins - here).repeat_interleave(lengths) + torch.arange(extent.numel)


def _plan(rank: int, wanted: _Held, held: list[_Held]) -> dict[int, tuple[Tensor, Tensor]]:
    """Return, by source, the numbers of its elements for `rank`: in its row, and in that rank's.

    The rank itself comes first, then others from a different beginning for each rank.
    """
    size = len(held)
    order = [rank, *((rank + step) % size for step in range(1, size))]
    found: dict[int, list[tuple[Tensor, Tensor]]] = {}
    offset = 0
    for name, extent in wanted:
        elements = _elements(extent)
        is_missing = torch.ones(len(elements), dtype=torch.bool)
        for source in order:
            place = 0
            for other, its_extent in held[source]:
                if other == name and is_missing.any():
                    where = torch.full((_numel(extent),), -1)
                    where[_elements(its_extent)] = torch.arange(its_extent.numel) + place
                    taken = is_missing & (where[elements] >= 0)
                    pair = where[elements[taken]], offset + taken.nonzero()[:, 0]
                    found.setdefault(source, []).append(pair)
                    is_missing &= ~taken
                place += its_extent.numel
        if is_missing.any():
            raise ValueError(
                f"no rank has element {int(elements[is_missing][0])} of {name}, which rank {rank} "
                "wants: give the shards of all parameters as sources"
            )
        offset += extent.numel
    joined = {source: tuple(map(torch.cat, zip(*pairs))) for source, pairs in found.items()}
    return {source: (a, b) for source, (a, b) in joined.items() if len(a)}


def _numel(extent: Extent) -> int:
    return Extent.whole(extent.shape).numel
