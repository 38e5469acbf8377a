"""A layout: the number of ranks of each kind of parallelism, and which ranks they are.

    Layout(world_size=16, tp=2, pp=2).dp == 4

    slowest                               fastest      ranks are numbered by
      pp         dp          cp         tp             ((pp * DP + dp) * CP + cp) * TP + tp
                 [------- ep -------]  [etp]           tp = etp: an expert is cut as the others
                 [--------- ep ----------] [etp]       tp > etp: ranks of tp have other experts

ep ranks share the experts, each of which etp ranks cut: the nearest ranks of tp, cp and dp. Equal
shares of all experts are on dp cp tp / (ep etp) groups.

Neighbouring ranks sit on one node, so tp, with the most traffic, is the fastest, and pp, with the
least, is the slowest: Megatron-LM's order "tp-cp-ep-dp-pp" from its end. `order` may say another.
Papers: Narayanan et al., arXiv:2104.04473, section 3; Llama 3, arXiv:2407.21783, section 3.3.2.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from labkit import arguments

AXES = ("pp", "dp", "cp", "tp")
_OTHERS = (
    *("ep", "etp", "virtual", "stages", "zero", "shards", "reshard_after_forward"),
    *("microbatch", "recompute", "recompute_every"),
)
_WORDS = {"true": True, "false": False}
_ELSEWHERE = {
    "fsdp": "zero=3, and dp for its ranks",
    "ddp": "zero=0, and dp for its ranks",
    "hsdp": "zero=3 with shards",
    "mbs": "microbatch",
    "vp": "virtual",
    "vpp": "virtual",
}
"""Other projects' words for the same."""
RECOMPUTE = ("none", "selective", "operations", "full")
"""In the order of what they save."""


Sides = tuple[tuple[int, int], ...]
_COUNTS = ("world_size", "tp", "pp", "cp", "ep", "virtual", "microbatch", "recompute_every")


def keeps_units(zero: int, pp: int, reshard_after_forward: bool | None) -> bool:
    """Return whether zero 3 holds gathered parameters from forward to backward.

    reshard_after_forward: None: as torchtitan does, True without a pipeline and False with one.
    """
    reshards = pp == 1 if reshard_after_forward is None else reshard_after_forward
    return zero == 3 and not reshards


def check_shards(shards: int | None, dp: int, cp: int) -> None:
    """Raise ValueError unless so many ranks can share the states."""
    if shards is not None and (dp * cp) % arguments.counted("shards", shards):
        raise ValueError(
            f"shards={shards} does not divide dp={dp} * cp={cp}; give "
            f"{arguments.divisors_text(dp * cp)}"
        )


@lru_cache(maxsize=1 << 14)
def _sides(
    sizes: tuple[tuple[str, int], ...], cut: int, shared: int, axes: tuple[str, ...]
) -> tuple[Sides, Sides]:
    """Return (ranks, stride) along axes of a group and of its copies, of sizes, the slowest first.

    `cut` ranks of the first axes are skipped, `shared` of the next ones are a group.
    """
    strides, stride = {}, 1
    for axis, size in reversed(sizes):
        strides[axis], stride = stride, stride * size
    groups, copies = [], []
    for axis in axes:
        size, stride = dict(sizes)[axis], strides[axis]
        inside = math.gcd(cut, size)
        num = math.gcd(shared, size // inside)
        cut, shared = cut // inside, shared // num
        groups.append((num, stride * inside))
        copies.append((size // (inside * num), stride * inside * num))
    return tuple(groups), tuple(copies)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Numbers of ranks by kind of parallelism. dp is what is left: world_size / (tp pp cp).

    ValueError if dp is not whole, or ep etp does not divide dp cp tp. It names numbers that would
    do.
    """

    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    """Ranks that share the experts. They see different tokens."""
    etp: int | None = None
    """Ranks that cut one expert; None: as tp."""
    virtual: int = 1
    """Stages that each rank of a pipeline holds; more than 1: interleaved."""
    stages: tuple[int, ...] | None = None
    """Layers of each of pp * virtual stages, in the order of the model; None: cut evenly."""
    zero: int = 1
    """ZeRO level over dp (and cp), 0 to 3."""
    shards: int | None = None
    """Ranks that share the states; None: all of dp * cp. Fewer: they have as many copies (HSDP)."""
    reshard_after_forward: bool | None = None
    """As in calc.TrainingSetup: zero 3 gathers parameters for each pass. False: it keeps them, and
    with a pipeline whole gradients too. None: False with a pipeline, else True."""
    microbatch: int = 1
    """Sequences in one microbatch."""
    recompute: str = "none"
    """none, selective, operations or full, as in calc.activation_bytes."""
    recompute_every: int = 1
    """One layer in this many recomputes; the others keep all."""
    sequence_parallel: bool = True
    """If tp is more than 1, the tokens between its layers are sharded over its ranks."""
    order: tuple[str, ...] = AXES
    """Axes, the slowest first."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            object.__setattr__(self, name, arguments.counted(name, getattr(self, name)))
        for name in ("etp", "shards"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, arguments.counted(name, getattr(self, name)))
        if self.reshard_after_forward not in (None, True, False):
            raise ValueError(
                f"reshard_after_forward={self.reshard_after_forward!r:.60}: give True or False"
            )
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
        self._check_experts()
        if self.stages is not None:
            self._check_stages()
        check_shards(self.shards, self.dp, self.cp)
        if self.virtual > 1 and self.pp == 1:
            raise ValueError(f"virtual={self.virtual} stages on each rank need a pipeline: pp > 1")

    def _check_experts(self) -> None:
        ranks, rest = divmod(self.dp * self.cp * self.tp, self.expert_tp)
        if not rest and ranks % self.ep == 0:
            return
        axes = f"dp={self.dp} * cp={self.cp}"
        if self.etp is None:
            raise ValueError(
                f"ep={self.ep} does not divide {axes}, the ranks that can share the experts; try "
                f"ep={math.gcd(self.ep, self.dp * self.cp)}"
            )
        would_do = f"ep={math.gcd(self.ep, ranks)}" if not rest else f"etp={self.tp}"
        raise ValueError(
            f"ep={self.ep} * etp={self.etp} does not divide {axes} * tp={self.tp}, the ranks that "
            f"can share the experts; try {would_do}"
        )

    def _check_stages(self) -> None:
        is_sequence = isinstance(self.stages, tuple | list)
        counts = tuple(self.stages or ()) if is_sequence else (self.stages,)
        for each in counts:
            arguments.whole("stages", each, "layers of each stage, 0 or more", least=0)
        object.__setattr__(self, "stages", counts)
        if len(counts) != self.pp * self.virtual:
            raise ValueError(
                f"stages={counts} are {len(counts)}, and pp={self.pp} * virtual={self.virtual} "
                f"makes {self.pp * self.virtual}; give one number for each"
            )

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout of a text such as "dp=8 tp=4 zero=3"; what is left out is 1.

        stages=1+2+2+3: layers of each stage. reshard_after_forward=true, or false.
        ValueError for a word that is no such pair, for a name that no layout has, and as above.
        """
        found: dict[str, Any] = {"dp": 1}
        for word in text.replace(",", " ").split():
            name, _, value = word.partition("=")
            if name not in (*AXES, *_OTHERS) or not value:
                names = (*AXES, *_OTHERS)
                meant = f"; did you mean {near}?" if (near := _near(name, names)) else ""
                raise ValueError(f"{word!r}: give pairs such as tp=4, of {', '.join(names)}{meant}")
            found[name] = int(value) if value.isdecimal() else _WORDS.get(value.lower(), value)
            if name == "stages":
                found[name] = tuple(
                    int(each) if each.isdecimal() else each for each in value.split("+")
                )
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
    def expert_tp(self) -> int:
        """Ranks that cut one expert."""
        return self.etp or self.tp

    @property
    def expert_shards(self) -> int:
        """Ranks that share the states of the same experts."""
        copies = self.dp * self.cp * self.tp // (self.ep * self.expert_tp)
        return max(1, copies * self.num_shards // (self.dp * self.cp))

    @property
    def expert_sides(self) -> tuple[Sides, Sides]:
        """(ranks, stride) along axes: of a group that shares the experts, and of their copies."""
        return self._sides(self.expert_tp, self.ep, ("tp", *self._replicas))

    @property
    def shard_sides(self) -> tuple[Sides, Sides]:
        """(ranks, stride) along axes: of a group that shares the states, and of their copies."""
        return self._sides(1, self.num_shards, self._replicas)

    @property
    def _replicas(self) -> tuple[str, ...]:
        """cp and dp, the faster first."""
        return ("dp", "cp") if self.order.index("dp") > self.order.index("cp") else ("cp", "dp")

    def _sides(self, cut: int, shared: int, axes: tuple[str, ...]) -> tuple[Sides, Sides]:
        return _sides(tuple(self.sizes.items()), cut, shared, axes)

    @property
    def joined_replicas(self) -> int:
        """Neighbours on the dp axis that wait for each other in every layer of experts."""
        return self.dp // self.expert_sides[1][1 + self._replicas.index("dp")][0]

    @property
    def num_shards(self) -> int:
        """Ranks that share the states."""
        return self.shards or self.dp * self.cp

    @property
    def keeps_units(self) -> bool:
        """Return whether zero 3 holds gathered parameters from forward to backward."""
        return keeps_units(self.zero, self.pp, self.reshard_after_forward)

    @property
    def exchange_level(self) -> int:
        """The ZeRO level that exchanges as much: 1 where zero 3 keeps whole units of a pipeline."""
        return 1 if self.keeps_units and self.pp > 1 else self.zero

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
        more = [f"ep {self.ep}"] * (self.ep > 1) + [f"etp {self.etp}"] * (self.etp is not None)
        more += [f"virtual {self.virtual}"] * (self.virtual > 1)
        if self.stages is not None:
            more.append(f"stages {'+'.join(map(str, self.stages))}")
        more += [f"zero {self.zero}"] * (self.zero > 0)
        more += [f"shards {self.shards}"] * (self.shards is not None)
        if self.reshard_after_forward is not None:
            more.append("resharded" if self.reshard_after_forward else "not resharded")
        if self.recompute != "none":
            every = f" every {self.recompute_every} layers" * (self.recompute_every > 1)
            more.append(f"recompute {self.recompute}{every}")
        return ", ".join([text, *more, f"microbatch {self.microbatch}"])


def _near(name: str, names: tuple[str, ...]) -> str:
    """Return what a word that is no name may mean; "" if nothing is near."""
    plain = re.sub("[^a-z]", "", name.lower())
    return _ELSEWHERE.get(plain) or " or ".join(difflib.get_close_matches(plain, names, 2))
