"""Parameters side by side in one flat tensor, which is cut into a shard for each rank.

    3 ranks, parameters a (5), b (4), c (2)

    by elements     a a a a | a b b b | b c c .       equal shares; "." pads to a multiple of 3
    by parameters   a a a a a | b b b b . | c c . . .

By elements: all ranks own equally many elements, and a parameter may lie on several ranks. Each of
them has a fragment of it, a flat row. This suits element-wise optimizers, such as SGD or Adam.
ZeRO-3 always cuts in this way.

By parameters: each parameter lies on one rank. An optimizer needs this if it uses the norm of a
parameter (LARS, LAMB) or its rows and columns (Adafactor, Muon). ZeRO-1 then cuts in this way.
Parameters are placed in descending order of size, each on the rank that has the least so far. All
shards are padded to the length of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.data_parallel.replica import shaped_like


class Layout(NamedTuple):
    """Offsets of parameters in a flat tensor, and its length: n shards of equal length."""

    offsets: tuple[int, ...]
    numel: int
    keeps_whole: bool
    """True if every parameter lies within one shard."""


def by_elements(numels: Sequence[int], num_ranks: int) -> Layout:
    """Lay parameters out one after the other."""
    offsets, end = [], 0
    for numel in numels:
        offsets.append(end)
        end += numel
    return Layout(tuple(offsets), -(-end // num_ranks) * num_ranks, keeps_whole=False)


def by_parameters(numels: Sequence[int], num_ranks: int) -> Layout:
    """Lay parameters out so that each lies within one shard."""
    filled = [0] * num_ranks
    place: dict[int, tuple[int, int]] = {}
    for index in sorted(range(len(numels)), key=lambda index: -numels[index]):
        owner = filled.index(min(filled))
        place[index] = owner, filled[owner]
        filled[owner] += numels[index]
    longest = max(filled)
    in_order = (place[index] for index in range(len(numels)))
    offsets = tuple(owner * longest + start for owner, start in in_order)
    return Layout(offsets, num_ranks * longest, keeps_whole=True)


class Fragment(NamedTuple):
    """The part of one parameter that lies in one shard."""

    number: int
    """The number of the parameter in its flat tensor."""
    within: slice
    """The parameter's elements that lie here, in the order of memory."""
    place: slice
    """The place of these elements in the shard."""


@dataclass(frozen=True, eq=False)
class FlatBuffer:
    """Parameters of one dtype in one flat tensor: each parameter is a view of it."""

    parameters: tuple[Tensor, ...]
    forms: tuple[Tensor, ...]
    """The parameters' shapes and strides, on the device "meta": zero3 releases the parameters."""
    layout: Layout
    weights: Tensor
    """(n*k,)"""
    num_ranks: int

    def views(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return views of `flat`, a tensor like `weights`, shaped like the parameters."""
        return tuple(
            shaped_like(flat[offset : offset + form.numel()], form)
            for offset, form in zip(self.layout.offsets, self.forms, strict=True)
        )

    def fragments(self, rank: int) -> list[Fragment]:
        """Return the fragments in a rank's shard, in order."""
        shard_numel = self.layout.numel // self.num_ranks
        begin, end = rank * shard_numel, (rank + 1) * shard_numel
        found = []
        for index, form in enumerate(self.forms):
            offset = self.layout.offsets[index]
            start, stop = max(offset, begin), min(offset + form.numel(), end)
            if start < stop:
                within = slice(start - offset, stop - offset)
                found.append(Fragment(index, within, slice(start - begin, stop - begin)))
        return sorted(found, key=lambda fragment: fragment.place.start)

    def shaped(self, row: Tensor, fragment: Fragment) -> Tensor:
        """Return a fragment's elements in the shape that its optimizer needs."""
        if self.layout.keeps_whole:
            return shaped_like(row, self.forms[fragment.number])
        return row

    def row(self, x: Tensor, fragment: Fragment) -> Tensor:
        """Return the elements of x as a flat row, in the order of the parameter's memory."""
        if not self.layout.keeps_whole:
            return x
        row = x.new_empty(x.numel())
        self.shaped(row, fragment).copy_(x)
        return row

    def require_in_place(self) -> None:
        """Raise RuntimeError if a parameter is no longer a view, as after `.to()` or `.data = `."""
        size = self.weights.element_size()
        for index, (offset, parameter) in enumerate(
            zip(self.layout.offsets, self.parameters, strict=True)
        ):
            if (
                parameter.numel()
                and parameter.data_ptr() != self.weights.data_ptr() + offset * size
            ):
                raise RuntimeError(
                    f"parameter {index}, {tuple(parameter.shape)}, was moved or got another dtype "
                    "after its optimizer was made, which would update memory that the model no "
                    "longer uses. Move or convert the model first, then make the optimizer"
                )


def flattened(parameters: Sequence[Tensor], layout: Layout, num_ranks: int) -> FlatBuffer:
    """Move the parameters into one flat tensor. Memory: both, until the old tensors are freed."""
    first = parameters[0]
    weights = torch.zeros(layout.numel, dtype=first.dtype, device=first.device)
    forms = tuple(torch.empty_like(parameter, device="meta") for parameter in parameters)
    flat = FlatBuffer(tuple(parameters), forms, layout, weights, num_ranks)
    for parameter, view in zip(parameters, flat.views(weights), strict=True):
        view.copy_(parameter.data)
        parameter.data = view
    return flat


def is_divided_before(dtype: torch.dtype) -> bool:
    """Return whether gradients are divided by the number of ranks before the sum over the ranks.

    The largest float16 is 65,504: the sum may overflow even if the mean does not. For other dtypes
    only the shard of the sum is divided, which is an n-th of the work.
    """
    return dtype == torch.float16


def require_floating(name: str, dtype: object) -> None:
    """Raise TypeError unless `dtype` is None or a dtype of floating-point numbers."""
    is_floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not is_floating:
        raise TypeError(f"{name}={dtype!r:.60}: give a dtype such as torch.float32, or None")
