"""Shards: which elements of whole, named tensors a rank holds, and where two shards overlap.

A strategy that holds its parameters in another form than a plain module has a method
`named_shards()`, which yields a NamedShard for each of them. `named_shards(model)` asks it. So a
checkpoint, or whatever else moves parameters between layouts, knows no strategy by name.

Every strategy's shard is a box of the whole tensor, or a range of the elements of a box, counted
row by row. Tensor parallelism cuts boxes, ZeRO cuts ranges, and ZeRO over tensor parallelism cuts
ranges of boxes:

    whole (3, 6)      box: rows 1-2, columns 2-4      elements 1 to 4 of the box
    . . . . . .           . . . . . .                     . . . . . .
    . . . . . .           . . 0 1 2 .                     . . . 1 2 .
    . . . . . .           . . 3 4 5 .                     . . 3 4 . .

In the memory of the whole tensor that is a list of runs of neighbouring elements: here elements 9
and 10, then 14 and 15. Two extents overlap if their runs do, for any two layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

Kind = Literal["elements", "whole", "int", "float"]
"""Elements that a layout cuts; a tensor that no layout cuts; a number of Python's."""


class Overlap(NamedTuple):
    """A run of elements that two extents share."""

    here: int
    """Its first element, counted in the first extent."""
    there: int
    """The same element, counted in the second."""
    numel: int


@dataclass(frozen=True)
class Extent:
    """Elements `start` to `stop` of a box of a tensor of shape `shape`, counted row by row."""

    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...]
    """By dim: the first index, and the one past the last."""
    start: int
    stop: int

    @staticmethod
    def whole(shape: tuple[int, ...]) -> Extent:
        """Return all elements."""
        return Extent(tuple(shape), tuple((0, n) for n in shape), 0, math.prod(shape))

    @staticmethod
    def of_dim(shape: tuple[int, ...], dim: int, indices: range) -> Extent:
        """Return the slice `indices` of one dim."""
        box = [(0, n) for n in shape]
        box[dim] = (indices.start, indices.start + len(indices))
        return Extent(tuple(shape), tuple(box), 0, math.prod(b - a for a, b in box))

    def to_plain(self) -> list[Any]:
        """Return the extent as JSON data; see from_plain."""
        return [self.shape, self.box, self.start, self.stop]

    @staticmethod
    def from_plain(plain: Sequence[Any]) -> Extent:
        """Return the extent of a `to_plain` that has been through JSON."""
        shape, box, start, stop = plain
        return Extent(tuple(shape), tuple((first, last) for first, last in box), start, stop)

    @property
    def numel(self) -> int:
        """Return how many elements these are."""
        return self.stop - self.start

    @property
    def box_shape(self) -> tuple[int, ...]:
        """The shape of the box."""
        return tuple(last - first for first, last in self.box)

    def within(self, start: int, stop: int) -> Extent:
        """Elements `start` to `stop` of these."""
        return Extent(self.shape, self.box, self.start + start, self.start + stop)

    def runs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return runs of neighbouring elements: begin in the whole tensor, begin here, length.

        int64, (runs,) each, in ascending order.
        """
        if not self.numel:
            none = torch.empty(0, dtype=torch.int64, device="cpu")
            return none, none, none
        sizes, strides = self.box_shape, _strides(self.shape)
        # Dims from `inner` on are complete, so with the dim before them they make one run.
        inner = len(sizes)
        while inner and sizes[inner - 1] == self.shape[inner - 1]:
            inner -= 1
        length = math.prod(sizes[max(inner - 1, 0) :])
        # The box's elements from `start` to `stop`, by number: each has a place in the dims
        # before the run's own.
        rest = torch.arange(self.start // length, -(-self.stop // length), device="cpu")
        here = length * rest
        begins = torch.full_like(rest, self._first_of_box(strides))
        for dim in reversed(range(max(inner - 1, 0))):
            begins += strides[dim] * (rest % sizes[dim])
            rest = rest.div(sizes[dim], rounding_mode="floor")
        first, last = here.clamp(min=self.start), (here + length).clamp(max=self.stop)
        some = first < last
        return (begins + first - here)[some], (first - self.start)[some], (last - first)[some]

    def _first_of_box(self, strides: Sequence[int]) -> int:
        """Return the first element of the box, counted in the whole tensor."""
        return sum(first * stride for (first, _), stride in zip(self.box, strides, strict=True))

    def meets(self, other: Extent) -> bool:
        """Return whether both have an element in common."""
        if self.box == other.box:
            return self.start < other.stop and other.start < self.stop
        return bool(self.overlaps(other))

    def overlaps(self, other: Extent) -> list[Overlap]:
        """Return the runs that both have, in ascending order."""
        mine, here, lengths = self.runs()
        theirs, there, their_lengths = other.runs()
        # Each of my runs meets neighbouring ones of theirs: from `low` up to `high`.
        low = torch.searchsorted(theirs + their_lengths, mine, right=True)
        high = torch.searchsorted(theirs, mine + lengths)
        counts = high - low
        i = torch.arange(len(mine), device="cpu").repeat_interleave(counts)
        j = torch.arange(len(i), device="cpu")
        j -= torch.repeat_interleave(counts.cumsum(0) - counts - low, counts)
        begin = torch.maximum(mine[i], theirs[j])
        end = torch.minimum(mine[i] + lengths[i], theirs[j] + their_lengths[j])
        rows = torch.stack([here[i] + begin - mine[i], there[j] + begin - theirs[j], end - begin])
        return [Overlap(*row) for row in rows.T.tolist()]


def _strides(shape: tuple[int, ...]) -> list[int]:
    """Return the strides, in elements, of a contiguous tensor of this shape."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


@dataclass(frozen=True, eq=False)
class NamedShard:
    """Some elements of a whole tensor, by its name in the serial model, as this rank has them."""

    name: str
    extent: Extent
    tensor: Tensor
    """As many elements as the extent, row by row."""
    kind: Kind = "elements"


def named_shards(model: nn.Module) -> Iterator[NamedShard]:
    """Yield a model's parameters and saved buffers as shards of the serial model's, by its names.

    A model without a method of this name holds its parameters whole, a tied one under its first
    name, or sharded as its layers say in `shardings`, over the ranks of its `group`.
    Where replicas have buffers of their own, such as the averages of BatchNorm, a checkpoint has
    those of the lowest rank, which torch's DDP broadcasts, too.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    own: Callable[[], Iterator[NamedShard]] | None = getattr(model, "named_shards", None)
    if own is not None:
        yield from own()
        return
    rank = getattr(getattr(model, "group", None), "rank", 0)
    found: dict[int, NamedShard] = {}
    for path, module in model.named_modules():
        shardings = getattr(module, "shardings", {})
        for name, x in module.named_parameters(path, recurse=False):
            sharding = shardings.get(name.rpartition(".")[2])
            extent = Extent.whole(tuple(x.shape)) if sharding is None else sharding.extent(x, rank)
            found.setdefault(id(x), NamedShard(name, extent, x))
    yield from found.values()
    yield from saved_buffers(model)


def saved_buffers(model: nn.Module) -> Iterator[NamedShard]:
    """Yield the buffers that a state_dict has, whole."""
    saved = model.state_dict(keep_vars=True)
    for name, buffer in model.named_buffers():
        if name in saved:
            yield NamedShard(name, Extent.whole(tuple(buffer.shape)), buffer, "whole")


def require_rows(name: str, parameter: Tensor) -> None:
    """ZeRO counts elements in the order of memory, and an extent counts them row by row."""
    if not parameter.is_contiguous():
        raise ValueError(
            f"{name} has the strides {parameter.stride()}, and its shards are cut in the order of "
            "memory: make the parameter contiguous before the model is sharded"
        )
