"""Reductions: sums over the ranks, started now and waited for later.

    handle = reduction.start(x, group)      x is being summed over the ranks, in place
    ...                                     backward goes on
    handle.wait()                           x holds the sum

A wrapper's `all_reduce` is a function (x, group) that returns the sum, or a Reduction. There are
Reductions in compression.py, which sends less; in background.py, a thread for functions that block;
and in symmetric_buckets.py, buckets in shared memory.

`flattened` copies all parameters into one tensor, to be sent as one message; `put` copies it back.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.collectives.backend import LIBRARY, Handle
from labkit.comm import Group


class Reduction(ABC):
    """A way to sum tensors, such as the `flat` of a Bucket (bucketed.py), over a group's ranks."""

    remembers_buckets = False
    """True if it keeps state for each bucket. DDP then does not rebuild the buckets."""

    @abstractmethod
    def start(self, x: Tensor, group: Group) -> Handle:
        """Start to sum `x` over the ranks. After `wait()` x holds the sum."""

    def __call__(self, x: Tensor, group: Group) -> Tensor:
        """Replace `x` by its sum over the ranks."""
        total: Tensor = self.start(x, group).wait()
        return total

    def for_bucket(self, bucket: Any) -> Reduction:
        """Return the reduction of one bucket, with its own state if it keeps any."""
        return self

    def place_buckets(self, buckets: list[Any]) -> list[Any]:
        """Return the buckets, moved to the memory where they are reduced. Every rank calls it."""
        return buckets


AllReduce = Callable[..., Tensor | Handle]
"""all_reduce(x, group): the sum of x over the ranks, or a handle whose `wait()` returns it.

x may be overwritten. A function that takes `out=` is called with out=x, which saves a copy.
"""


def library_all_reduce(x: Tensor, group: Group) -> Handle:
    """Start the backend's own all-reduce, in place."""
    return LIBRARY.all_reduce(x, group)


def reduction_of(all_reduce: AllReduce) -> Reduction:
    """Return the Reduction that a wrapper's `all_reduce` stands for.

    Raises TypeError for anything but a function, and for a compressor's class.
    """
    if isinstance(all_reduce, Reduction):
        return all_reduce
    if isinstance(all_reduce, type):
        raise TypeError(
            f"all_reduce={all_reduce.__name__} is a class; give an instance, such as TopK(0.01), "
            "OneBit() or PowerSGD(2)"
        )
    return _FunctionReduction(all_reduce)


class _FunctionReduction(Reduction):
    def __init__(self, all_reduce: AllReduce) -> None:
        self._all_reduce = all_reduce
        self._takes_out = "out" in inspect.signature(all_reduce).parameters

    def start(self, x: Tensor, group: Group) -> Handle:
        options = {"out": x} if self._takes_out else {}
        return _ResultHandle(x, self._all_reduce(x, group, **options))


class _ResultHandle(NamedTuple):
    """A handle whose `wait` copies a function's result into `x`."""

    x: Tensor
    result: Tensor | Handle

    def wait(self) -> Tensor:
        x, total = self.x, self.result
        if not isinstance(total, Tensor) and hasattr(total, "wait"):
            total = total.wait()
        if not isinstance(total, Tensor):
            raise TypeError(f"all_reduce returned {total!r}; it must return the sum, or x itself")
        if total.shape != x.shape or total.dtype != x.dtype:
            raise ValueError(
                f"all_reduce returned {tuple(total.shape)} of {total.dtype} for gradients "
                f"{tuple(x.shape)} of {x.dtype}; it must return the sum, of that shape and dtype"
            )
        if total.data_ptr() != x.data_ptr():
            x.copy_(total)
        return x


@torch.no_grad()
def flattened(parameters: Iterable[Tensor]) -> Tensor:
    """Return a copy of all parameters, one after the other: (numel of all,)."""
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


@torch.no_grad()
def copy_from_flat(flat: Tensor, parameters: Iterable[Tensor]) -> None:
    """Set each parameter from its part of `flat`, (numel of all,): the inverse of `flattened`."""
    for parameter, part in parts_of(flat, parameters):
        parameter.copy_(part)


def parts_of(flat: Tensor, parameters: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return each parameter with the view of its part of `flat`, in the parameter's shape."""
    parameters = list(parameters)
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [(p, part.view(p.shape)) for p, part in zip(parameters, parts, strict=True)]
