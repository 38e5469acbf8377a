"""What a meter has seen: live bytes over time, by kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("parameters", "gradients", "optimizer states", "buffers", "activations", "other")
"""Of what fits, the first counts."""


@dataclass(frozen=True)
class Usage:
    """Live bytes over time, by kind. Plain data: a rank can return it."""

    times_s: list[float]
    """Of each change, from the meter's start."""
    bytes_of: Mapping[str, list[int]]
    """For each kind, the live bytes after each change."""
    allocator_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """On GPUs what torch's allocator says itself, by device: its peak while the meter ran, with
    workspaces and everything else on the device, rounded up. Empty on CPU."""

    @property
    def totals(self) -> list[int]:
        """All kinds together, after each change."""
        return [sum(each) for each in zip(*self.bytes_of.values(), strict=True)]

    @property
    def peak_bytes(self) -> int:
        """The most that was alive at once."""
        return max(self.totals, default=0)

    @property
    def at_peak(self) -> dict[str, int]:
        """What was alive at that moment, the first of equals, by kind."""
        totals = self.totals
        if not totals:
            return dict.fromkeys(KINDS, 0)
        when = totals.index(max(totals))
        return {kind: history[when] for kind, history in self.bytes_of.items()}

    def peak_of(self, kind: str) -> int:
        """The most of one kind, at whatever moment. KeyError for a kind that is none."""
        return max(self.bytes_of[kind], default=0)

    @property
    def at_end(self) -> dict[str, int]:
        """What is left."""
        return {kind: history[-1] if history else 0 for kind, history in self.bytes_of.items()}
