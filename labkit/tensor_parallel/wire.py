"""The three collectives of tensor parallelism, and who performs them.

                     before, ranks 0..1                    after
    all_reduce       partial sums (N, D) on each           the sum (N, D) on each
    reduce_scatter   partial sums (N, D) on each           rank r: its rows of the sum (N/n, D)
    all_gather       rank r: its rows (N/n, D)             all rows (N, D) on each

Wire, per rank, for x of N*D numbers: 2(n-1)/n of x, (n-1)/n of x, (n-1)/n of x. So the last two
together send what the first does, and sequence parallelism costs no bytes. The backend's own
reduce-scatter sends as much with nccl; gloo has none, and performs a whole all-reduce in its place.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from labkit.collectives import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.comm import (
    Group,
    shared_memory_all_gather,
    shared_memory_all_reduce,
    shared_memory_reduce_scatter,
)

Finish = Callable[[], Tensor]
"""Waits for what was started, and returns its result."""


class Wire(NamedTuple):
    """Each starts a collective on a contiguous tensor, whose memory it may use, and returns at
    once, or when it is done: call what it returned for the result."""

    all_reduce: Callable[[Tensor, Group], Finish]
    """(n*k, ...) -> (n*k, ...)"""
    reduce_scatter: Callable[[Tensor, Group], Finish]
    """(n*k, ...) -> (k, ...)"""
    all_gather: Callable[[Tensor, Group], Finish]
    """(k, ...) -> (n*k, ...)"""


def _done(result: Tensor) -> Finish:
    return lambda: result


def _rows(x: Tensor, flat: Tensor) -> Tensor:
    """A flat tensor as rows like those of x."""
    return flat.view(-1, *x.shape[1:])


def _library_reduce_scatter(x: Tensor, group: Group) -> Finish:
    finish: Finish = group.reduce_scatter(x, wait=False).wait
    return finish


LIBRARY = Wire(
    lambda x, group: group.all_reduce(x, out=x, wait=False).wait,
    _library_reduce_scatter,
    lambda x, group: group.all_gather(x, wait=False).wait,
)
"""The backend's, in the background: what is computed before the result is needed hides them."""

RING = Wire(
    lambda x, group: _done(ring_all_reduce(x, group, out=x)),
    lambda x, group: _done(_rows(x, ring_reduce_scatter(x, group))),
    lambda x, group: _done(_rows(x, ring_all_gather(x, x.numel() * group.size, group))),
)
"""The lab's own ring: on a CPU its reduce-scatter sends half of what gloo's does. Not for nccl: two
ranks that post their messages one by one may stand still there (see labkit.collectives)."""

SHARED_MEMORY = Wire(
    lambda x, group: _done(shared_memory_all_reduce(x, group, out=x)),
    lambda x, group: _done(_rows(x, shared_memory_reduce_scatter(x, group))),
    lambda x, group: _done(_rows(x, shared_memory_all_gather(x, x.numel() * group.size, group))),
)
"""Among ranks of one host: nothing is sent at all."""


_ON_A_CPU = Wire(LIBRARY.all_reduce, RING.reduce_scatter, RING.all_gather)


def chosen(wire: Wire | None, group: Group) -> Wire:
    """`wire`; for None the backend's collectives, but for the two that gloo has no good ones of.

    TypeError for what is no Wire.
    """
    if wire is None:
        return _ON_A_CPU if group.device.type == "cpu" else LIBRARY
    if not isinstance(wire, Wire):
        raise TypeError(
            f"wire={wire!r:.60}: give labkit.tensor_parallel.LIBRARY, RING or SHARED_MEMORY"
        )
    return wire
