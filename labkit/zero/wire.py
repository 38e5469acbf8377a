"""The two collectives of ZeRO: reduce-scatter for gradients, all-gather for parameters.

Both cut one flat tensor of n equal segments, and work inside its memory: what ZeRO saves must not
be spent on copies.
Wire: (n-1)/n of the tensor each, with a ring. The backend's own send as much with nccl; gloo has no
reduce-scatter, and performs a whole all-reduce in its place, twice the bytes.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.collectives import ring_all_gather, ring_reduce_scatter
from labkit.comm import Group, shared_memory_all_gather, shared_memory_reduce_scatter


class Wire(NamedTuple):
    """How a flat tensor (n*k,) is reduced to segments (k,), and gathered from them."""

    reduce_scatter: Callable[[Tensor, Group], Tensor]
    """(flat, group) -> own segment of the sum, a view of `flat`; the rest is used up."""
    all_gather: Callable[[Tensor, Group], None]
    """(flat, group): every rank has filled its own segment; fills the others."""


def is_divided_before(dtype: torch.dtype) -> bool:
    """Whether gradients are divided by the number of ranks before they are added up.

    Float16 ends at 65,504: the sum may overflow where the mean does not. For other dtypes it is
    the segment that is divided, an n-th of the work.
    """
    return dtype == torch.float16


def own_segment(flat: Tensor, group: Group) -> Tensor:
    """This rank's part (k,) of a flat tensor (n*k,)."""
    return flat.tensor_split(group.size)[group.rank]


def _library_reduce_scatter(flat: Tensor, group: Group) -> Tensor:
    segment = own_segment(flat, group)
    group.reduce_scatter(flat, out=segment)
    return segment


RING = Wire(
    lambda flat, group: ring_reduce_scatter(flat, group, in_place=True),
    lambda flat, group: _done(
        ring_all_gather(own_segment(flat, group), flat.numel(), group, out=flat)
    ),
)
SHARED_MEMORY = Wire(
    lambda flat, group: shared_memory_reduce_scatter(flat, group, in_place=True),
    lambda flat, group: _done(
        shared_memory_all_gather(own_segment(flat, group), flat.numel(), group, out=flat)
    ),
)
LIBRARY = Wire(
    _library_reduce_scatter,
    lambda flat, group: _done(group.all_gather(own_segment(flat, group), out=flat)),
)


def require_wire(wire: object) -> None:
    """TypeError for what is none."""
    if wire is not None and not isinstance(wire, Wire):
        raise TypeError(f"wire={wire!r:.60}: give labkit.zero.RING, SHARED_MEMORY or LIBRARY")


def require_floating(name: str, dtype: object) -> None:
    """TypeError for what is no dtype of floating-point numbers, and not None."""
    is_floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not is_floating:
        raise TypeError(f"{name}={dtype!r:.60}: give a dtype such as torch.float32, or None")


def usual(group: Group) -> Wire:
    """The ring on CPU, since gloo has no reduce-scatter; what the backend has elsewhere."""
    return RING if group.device.type == "cpu" else LIBRARY


def _done(_: Tensor) -> None:
    """The result is in `flat` already."""
