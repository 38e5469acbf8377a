"""The all-reduce under data parallelism: any function that sums a tensor over a group.

The backend's own begins and comes back as a Pending, so that computing goes on meanwhile. A
function that blocks, such as `ring_all_reduce`, can be sent to a thread of its own: background.py.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from labkit.comm import Group
from labkit.data_parallel.buckets import Bucket


class InFlight(Protocol):
    """A sum that is under way: a Pending, for example."""

    def wait(self) -> Any:
        """Block until it is there."""


AllReduce = Callable[..., Tensor | InFlight]
"""all_reduce(x, group): the sum of x over the ranks, or something whose `wait()` returns it.

x may be overwritten. One that takes `out=` is called with out=x, which saves a copy.
"""


@runtime_checkable
class PerBucket(Protocol):
    """Makes an all-reduce for each bucket, such as one that remembers something about it."""

    def of(self, bucket: Bucket) -> AllReduce:
        """The all-reduce of this bucket."""


@runtime_checkable
class HoldsBuckets(Protocol):
    """An all-reduce whose tensors lie in memory of its own, such as SymmetricBuckets."""

    def hold(self, buckets: list[Bucket]) -> list[Bucket]:
        """The same buckets in that memory. Every rank calls it, before it reduces them."""


def library_all_reduce(x: Tensor, group: Group) -> InFlight:
    """The backend's own all-reduce, in place, begun and not waited for."""
    pending: InFlight = group.all_reduce(x, out=x, wait=False)
    return pending


class _Arriving:
    """A sum that is to end up in `x`."""

    def __init__(self, x: Tensor, result: Tensor | InFlight) -> None:
        self._x, self._result = x, result

    def wait(self) -> Tensor:
        total = self._result.wait() if hasattr(self._result, "wait") else self._result
        if not isinstance(total, Tensor):
            raise TypeError(f"all_reduce returned {total!r}; it must return the sum, or x itself")
        x = self._x
        if total.shape != x.shape or total.dtype != x.dtype:
            raise ValueError(
                f"all_reduce returned {tuple(total.shape)} of {total.dtype} for gradients "
                f"{tuple(x.shape)} of {x.dtype}; it must return the sum, of that form"
            )
        if total.data_ptr() != x.data_ptr():
            x.copy_(total)
        return x


def all_reduces_of(all_reduce: AllReduce | PerBucket, buckets: list[Bucket]) -> list[AllReduce]:
    """The all-reduce of each bucket. A compressor makes one for each.

    TypeError for what is no all-reduce, and for a bucket that a compressor cannot make smaller.
    """
    require_all_reduce(all_reduce)
    if isinstance(all_reduce, PerBucket):
        return [all_reduce.of(bucket) for bucket in buckets]
    return [all_reduce] * len(buckets)


def held_by(all_reduce: AllReduce | PerBucket, buckets: list[Bucket]) -> list[Bucket]:
    """The buckets where the all-reduce wants them; these, if it does not care."""
    return all_reduce.hold(buckets) if isinstance(all_reduce, HoldsBuckets) else buckets


def needs_buckets(all_reduce: AllReduce | PerBucket) -> bool:
    """Whether it remembers something about each bucket, as a compressor does."""
    return isinstance(all_reduce, PerBucket) and getattr(all_reduce, "needs_buckets", True)


def require_all_reduce(all_reduce: object) -> None:
    """Raise TypeError, with what would be one, unless gradients can be reduced by it."""
    if isinstance(all_reduce, type) and isinstance(all_reduce, PerBucket):
        raise TypeError(
            f"all_reduce={all_reduce.__name__} is a class; give one that is made, such as "
            "TopK(0.01), OneBit() or PowerSGD(2)"
        )
    if not callable(all_reduce) and not isinstance(all_reduce, PerBucket):
        raise TypeError(
            f"all_reduce={all_reduce!r:.80}: give a function (x, group) that returns the sum, such "
            "as labkit.collectives.ring_all_reduce, or a compressor; leave it out for the library's"
        )


def begin(all_reduce: AllReduce, x: Tensor, group: Group) -> InFlight:
    """Begin to sum `x` over the ranks; it holds the sum once `wait()` has returned.

    Raises ValueError, from `wait()`, for a sum of another shape or dtype.
    """
    in_place = {"out": x} if _takes_out(all_reduce) else {}
    return _Arriving(x, all_reduce(x, group, **in_place))


def _takes_out(all_reduce: AllReduce) -> bool:
    try:
        return "out" in inspect.signature(all_reduce).parameters
    except (TypeError, ValueError):  # some callables have no signature
        return False
