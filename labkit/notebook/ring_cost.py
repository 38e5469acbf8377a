"""What the ring calculator computes and says: no widgets here, formulas from labkit.calc only."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from labkit import calc
from labkit.calc.traffic.collective_cost import Collective

# The least that makes sense; a link slower than a byte per second is a unit gone wrong.
_LEAST = {
    "num_parameters": 0,
    "bytes_per_element": 1,
    "world_size": 1,
    "num_tensors": 1,
    "link_bytes_per_s": 1,
    "latency_s": 0,
}


@dataclass(frozen=True)
class RingCost:
    """An all-reduce of a model's gradients over a ring; what follows is in its properties.

    Raises ValueError for a number that no ring has: not finite, below 0, or below 1 where at least
    one is needed.
    """

    num_parameters: float
    bytes_per_element: int
    world_size: int
    num_tensors: int
    """The gradients travel as this many tensors of equal size, one after the other."""
    link_bytes_per_s: float
    """One direction of the slowest link in the ring."""
    latency_s: float
    """Per message."""

    def __post_init__(self) -> None:
        """Check every number: a slider cannot stand at infinity."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            is_counted = name in ("world_size", "num_tensors")
            if not least <= value < math.inf or (is_counted and value != int(value)):
                kind = "a whole number" if is_counted else "a finite number"
                raise ValueError(
                    f"{name}={value}: a ring needs {kind}, {least} or more; "
                    f"try {getattr(PRESETS['one node: 8 GPUs'], name):g}"
                )

    @property
    def gradient_bytes(self) -> float:
        """D: all tensors together."""
        return self.num_parameters * self.bytes_per_element

    @property
    def _ring(self) -> Collective:
        return calc.collective("all_reduce", "ring", self.world_size, self.gradient_bytes)

    @property
    def sent_bytes(self) -> float:
        """What each rank puts on the wire."""
        return self._ring.sent_bytes

    @property
    def num_messages(self) -> int:
        """Messages that each rank sends."""
        return self.num_tensors * self._ring.steps

    @property
    def seconds(self) -> float:
        """Time of all tensors by the alpha-beta model."""
        return self.latency_seconds + self.bandwidth_seconds

    @property
    def latency_seconds(self) -> float:
        """The part of it that is paid per message."""
        return self.num_tensors * self._ring.seconds(self.latency_s, 0)

    @property
    def bandwidth_seconds(self) -> float:
        """The part of it that is paid per byte."""
        return self._ring.seconds(0, 1 / self.link_bytes_per_s)

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, value and how it comes about, for each result."""
        n, total = self.world_size, calc.bytes_text(self.gradient_bytes)
        busbw = algbw = "–"
        if self.seconds > 0:
            algbw = str(calc.algbw(self.gradient_bytes, self.seconds))
            busbw = str(calc.busbw(self.gradient_bytes, self.seconds, n))
        parameters, itemsize = calc.count_text(self.num_parameters), self.bytes_per_element
        messages = f"{self.num_tensors:,} x 2 x {n - 1}"
        parts = f"{calc.seconds_text(self.latency_seconds)} latency"
        parts += f" + {calc.seconds_text(self.bandwidth_seconds)} bytes"
        return [
            ("gradients D", total, f"{parameters} parameters x {itemsize} B"),
            ("each rank sends", calc.bytes_text(self.sent_bytes), f"2 x {n - 1}/{n} x D"),
            ("in messages", f"{self.num_messages:,}", f"{messages} (tensors x 2(n-1))"),
            ("time", calc.seconds_text(self.seconds), parts),
            ("algbw", algbw, "algorithm bandwidth, D / time"),
            ("busbw", busbw, f"bus bandwidth, algbw x 2 x {n - 1}/{n}: compare with the link"),
        ]

    def text(self) -> str:
        """The results as aligned plain text."""
        return "\n".join(f"{name:16}{value:>12}   {how}" for name, value, how in self.lines())


def over_ranks(cost: RingCost, world_sizes: Iterable[int]) -> list[RingCost]:
    """The same gradients and links, for each number of ranks."""
    fixed = {name: getattr(cost, name) for name in cost.__dataclass_fields__}
    return [RingCost(**fixed | {"world_size": world_size}) for world_size in world_sizes]


PRESETS = {
    # Illustrative round numbers; benchmarks show what this machine really does.
    # What benchmarks/ring.py shows for four processes on two cores, rounded.
    "laptop: 4 processes": RingCost(10e6, 4, 4, 1, 0.5e9, 500e-6),
    "one node: 8 GPUs": RingCost(7e9, 2, 8, 1, 360e9, 5e-6),
    "cluster: 512 GPUs": RingCost(70e9, 2, 512, 100, 50e9, 10e-6),
}
