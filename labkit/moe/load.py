"""Expert load: how many tokens each expert, and so each rank, had to compute.

The rank with most decides when the combine can be sent, and the others wait for it: with experts
sharded over ranks, an uneven router makes a straggler. How much that costs is `imbalance`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.moe.expert_mlps import held_by_ranks
from labkit.moe.routing import Routing


@dataclass(frozen=True)
class ExpertLoad:
    """Choices of one layer, in plain numbers: kept[r][e] from rank r to expert e.

    ValueError for counts that are not of one number of experts, or of others than are held.
    """

    kept: tuple[tuple[int, ...], ...]
    """Computed: by source rank, then by expert."""
    dropped: tuple[tuple[int, ...], ...]
    """Not computed: of the same form."""
    held: tuple[range, ...]
    """The experts of each rank."""

    def __post_init__(self) -> None:
        num_experts = self.held[-1].stop if self.held else 0
        if not self.kept or len(self.kept) != len(self.dropped):
            raise ValueError(
                f"kept has {len(self.kept)} source ranks and dropped {len(self.dropped)}; give a "
                "row of each for every rank"
            )
        for row in (*self.kept, *self.dropped):
            if len(row) != num_experts:
                raise ValueError(
                    f"a row has {len(row)} experts, and {num_experts} are held; give a number for "
                    "each"
                )

    @property
    def by_expert(self) -> list[int]:
        """Choices that each expert computes."""
        return [sum(column) for column in zip(*self.kept)]

    @property
    def dropped_by_expert(self) -> list[int]:
        """Choices that each expert turned away."""
        return [sum(column) for column in zip(*self.dropped)]

    @property
    def by_rank(self) -> list[int]:
        """Choices that each rank computes: those of the experts it holds."""
        by_expert = self.by_expert
        return [sum(by_expert[number] for number in held) for held in self.held]

    @property
    def num_dropped(self) -> int:
        """Choices that nobody computes."""
        return sum(self.dropped_by_expert)

    @property
    def imbalance(self) -> float:
        """The busiest rank's choices over the mean of all: 1 is balanced, n: one rank has all."""
        by_rank = self.by_rank
        return max(by_rank) * len(by_rank) / max(1, sum(by_rank))

    def between_ranks(self) -> list[list[int]]:
        """[r][s]: rows that rank r sends to rank s in a dispatch; on the diagonal, what stays."""
        return [[sum(row[number] for number in held) for held in self.held] for row in self.kept]


def expert_load(routing: Routing, group: Group | None = None) -> ExpertLoad:
    """The load of a layer whose experts are sharded over `group`, on every rank.

    routing: of this rank's tokens, as a layer returns it. Every rank calls it.
    Wire: an all-gather of 2 E counts.
    """
    arguments.instance("routing", routing, Routing, "give a Routing, as a layer returns it")
    group = chosen(group)
    mine_12E = torch.stack([routing.kept_E, routing.dropped_E])[None]
    all_n2E: Tensor = group.all_gather(mine_12E)
    kept, dropped = (_rows(all_n2E[:, which]) for which in range(2))
    return ExpertLoad(kept, dropped, held_by_ranks(routing.num_experts, group.size))


def _rows(counts_nE: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in counts_nE.tolist())
