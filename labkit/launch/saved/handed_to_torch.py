"""What a rank handed to torch.distributed past its Groups, as part of its record.

Ranks of several hosts cannot look into each other's tables while they run: what they called, and
what torch issued itself, is compared when all have returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.comm import Timeline
from labkit.comm.recorded import HandedOver
from labkit.launch.saved import timeline_json


@dataclass
class HandedToTorch:
    """Of one rank that has returned."""

    calls: Timeline = field(default_factory=Timeline)
    """Of torch's functions, see comm/calls."""
    meanings: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    by_group: list[tuple[str, list[int]]] = field(default_factory=list)
    """Of each process group, collectives in order, each by the number of its meaning, from 1."""
    num_lost: int = 0

    @classmethod
    def of(cls, calls: Timeline, handed_over: HandedOver) -> HandedToTorch | None:
        """None where all that torch got came from Groups."""
        if not calls.operations and not handed_over.by_group:
            return None
        by_group = [(name, list(numbers)) for name, numbers in handed_over.by_group.items()]
        meanings = list(handed_over.meanings)
        return cls(calls, meanings, by_group, handed_over.num_lost)

    @property
    def handed_over(self) -> HandedOver:
        """As the rank told it."""
        return HandedOver(self.meanings, dict(self.by_group), self.num_lost)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "calls": timeline_json.encode(self.calls)}

    @staticmethod
    def prepared(data: Any) -> Any:
        """Plain data, its timeline read; ValueError where that is damaged."""
        if not isinstance(data, dict):
            return data
        return {**data, "calls": timeline_json.decode(data.get("calls"))}
