"""A layout: the number of ranks of each kind of parallelism, and which ranks they are.

    Layout(world_size=16, tp=2, pp=2).dp == 4

    slowest                               fastest      ranks are numbered by
      pp         dp          cp         tp             ((pp * DP + dp) * CP + cp) * TP + tp
                 ep neighbouring ranks of dp share the experts

Neighbouring ranks sit on one node, so tp, with the most traffic, is the fastest, and pp, with the
least, is the slowest: Megatron-LM's order "tp-cp-ep-dp-pp" from its end. `order` may say another.
Papers: Narayanan et al., arXiv:2104.04473, section 3; Llama 3, arXiv:2407.21783, section 3.3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from labkit import arguments

AXES = ("pp", "dp", "cp", "tp")
_OTHERS = ("ep", "virtual", "zero", "microbatch", "recompute")
RECOMPUTE = ("none", "selective", "operations", "full")
"""In the order of what they save."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Numbers of ranks by kind of parallelism. dp is what is left: world_size / (tp pp cp).

    ValueError if dp is not whole, or ep does not divide dp. It names numbers that would do.
    """

    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    """Neighbours on the dp axis that share the experts. They see different data."""
    virtual: int = 1
    """Stages that each rank of a pipeline holds; more than 1: interleaved."""
    zero: int = 1
    """ZeRO level over dp (and cp), 0 to 3."""
    microbatch: int = 1
    """Sequences in one microbatch."""
    recompute: str = "none"
    """none, selective, operations or full, as in calc.activation_bytes."""
    sequence_parallel: bool = True
    """If tp is more than 1, the tokens between its layers are sharded over its ranks."""
    order: tuple[str, ...] = AXES
    """Axes, the slowest first."""

    def __post_init__(self) -> None:
        for name in ("world_size", "tp", "pp", "cp", "ep", "virtual", "microbatch"):
            object.__setattr__(self, name, arguments.counted(name, getattr(self, name)))
        if self.zero not in (0, 1, 2, 3) or isinstance(self.zero, bool):
            raise ValueError(f"zero={self.zero!r:.60}: give 0, 1, 2 or 3")
        object.__setattr__(self, "zero", int(self.zero))
        if self.recompute not in RECOMPUTE:
            raise ValueError(
                f"recompute={self.recompute!r:.60}: give one of {', '.join(RECOMPUTE)}"
            )
        is_sequence = isinstance(self.order, tuple | list)
        object.__setattr__(self, "order", tuple(self.order) if is_sequence else self.order)
        if not is_sequence or sorted(map(str, self.order)) != sorted(AXES):
            raise ValueError(f"order={self.order!r}: give {', '.join(AXES)}, each once")
        others = self.tp * self.pp * self.cp
        if self.world_size % others:
            raise ValueError(
                f"tp={self.tp} * pp={self.pp} * cp={self.cp} makes {others} ranks, which does not "
                f"divide world_size={self.world_size}; {others * max(1, self.world_size // others)}"
                " ranks would do"
            )
        if self.dp % self.ep:
            raise ValueError(
                f"ep={self.ep} does not divide dp={self.dp}: experts are shared by ranks of the dp "
                f"axis; try ep={math.gcd(self.ep, self.dp)}"
            )
        if self.virtual > 1 and self.pp == 1:
            raise ValueError(f"virtual={self.virtual} stages on each rank need a pipeline: pp > 1")

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout of a text such as "dp=8 tp=4 zero=3"; what is left out is 1.

        ValueError for a word that is no such pair, for a name that no layout has, and as above.
        """
        found: dict[str, Any] = {"dp": 1}
        for word in text.replace(",", " ").split():
            name, _, value = word.partition("=")
            if name not in (*AXES, *_OTHERS) or not value:
                raise ValueError(
                    f"{word!r}: give pairs such as tp=4, of {', '.join((*AXES, *_OTHERS))}"
                )
            found[name] = int(value) if value.isdecimal() else value
        axes = [found.get(name, 1) for name in AXES]
        if bad := [each for each in axes if isinstance(each, str) or each < 1]:
            raise ValueError(f"{text!r:.80}: {bad[0]!r} is no number of ranks; give 1 or more")
        del found["dp"]
        return cls(world_size=math.prod(axes), **found)

    @property
    def dp(self) -> int:
        """Ranks that each have a share of the batch."""
        return self.world_size // (self.tp * self.pp * self.cp)

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks by axis, slowest first."""
        return {axis: getattr(self, axis) for axis in self.order}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank, by axis. Raises ValueError for a rank outside."""
        rest, found = arguments.rank("rank", rank, self.world_size), {}
        for axis, size in reversed(self.sizes.items()):
            rest, found[axis] = divmod(rest, size)
        return {axis: found[axis] for axis in self.order}

    def stride(self, axis: str) -> int:
        """Return the distance from a rank to its neighbour along an axis: the sizes of faster
        axes."""
        if axis not in self.sizes:
            raise ValueError(f"axis={axis!r}: give one of {', '.join(self.order)}")
        faster = self.order[self.order.index(axis) + 1 :]
        return math.prod(getattr(self, each) for each in faster)

    def group(self, axis: str, rank: int) -> range:
        """Return the ranks that differ from this one along one axis only, itself included."""
        stride = self.stride(axis)
        first = rank - self.coordinates(rank)[axis] * stride
        return range(first, first + self.sizes[axis] * stride, stride)

    def in_one_node(self, axis: str, gpus_per_node: int) -> int:
        """Return how many ranks of rank 0's group along an axis share its node.

        If it is all of them, the group uses no slow link.
        """
        gpus_per_node = arguments.counted("gpus_per_node", gpus_per_node)
        group = self.group(axis, 0)
        return sum(rank < gpus_per_node for rank in group)

    def num_microbatches(self, global_batch: int) -> int:
        """Return the microbatches of each rank in a step of `global_batch` sequences.

        ValueError if the ranks cannot share them evenly.
        """
        global_batch = arguments.counted("global_batch", global_batch)
        at_once = self.dp * self.microbatch
        if global_batch % at_once or global_batch < at_once:
            raise ValueError(
                f"global_batch={global_batch} sequences cannot be shared by dp={self.dp} ranks in "
                f"microbatches of {self.microbatch}; give a multiple of {at_once}"
            )
        return global_batch // at_once

    def __str__(self) -> str:
        """Write `dp 4 x tp 2 x pp 2, zero 1`, without axes of size 1."""
        names = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp}
        text = " x ".join(f"{name} {size}" for name, size in names.items() if size > 1) or "1 rank"
        more = [f"ep {self.ep}"] * (self.ep > 1) + [f"virtual {self.virtual}"] * (self.virtual > 1)
        more += [f"zero {self.zero}"] * (self.zero > 0)
        more += [f"recompute {self.recompute}"] * (self.recompute != "none")
        return ", ".join([text, *more, f"microbatch {self.microbatch}"])
