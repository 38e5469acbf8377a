"""Choose the implementation of a strategy's collectives: the library's, a ring, shared memory.

                     before                                after
    all_reduce       partial sums (N, D) on each           the sum (N, D) on each
    reduce_scatter   partial sums (N, D) on each           rank r: its rows of the sum (N/n, D)
    all_gather       rank r: its rows (N/n, D)             all rows (N, D) on each

Wire, per rank, for x of N*D numbers: 2(n-1)/n, (n-1)/n and (n-1)/n of x. So a reduce-scatter and an
all-gather together send as much as an all-reduce: ZeRO-1 and sequence parallelism add no bytes.
This holds for nccl's reduce-scatter. gloo performs a whole all-reduce instead.

`first_order_only` is for backward passes that communicate and have no gradient themselves. torch's
`once_differentiable` raises an error only if the incoming gradient needs a gradient. With
create_graph=True from a loss it does not, and the second derivative would silently miss all that
depends on saved inputs.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from labkit.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.comm import (
    Group,
    shared_memory_all_gather,
    shared_memory_all_reduce,
    shared_memory_reduce_scatter,
)


class Handle(Protocol):
    """A collective that was started: a Pending, for example."""

    def wait(self) -> Any:
        """Block until the collective is complete, and return its result."""


class Done(NamedTuple):
    """The handle of a collective that is complete already."""

    result: Tensor

    def wait(self) -> Tensor:
        """Return the result."""
        return self.result


class CollectiveBackend(NamedTuple):
    """Three functions that start a collective on a contiguous tensor, whose memory they may use.
    They return a handle, at once or when they are done. Its `wait()` returns the result."""

    all_reduce: Callable[[Tensor, Group], Handle]
    """(n*k, ...) -> (n*k, ...), in place"""
    reduce_scatter: Callable[..., Handle]
    """(n*k, ...) -> (k, ...); with in_place=True a view of x, without a new tensor"""
    all_gather: Callable[..., Handle]
    """(k, ...) -> (n*k, ...), or `out` of that size, of which x may be this rank's view"""


def own_part(x: Tensor, group: Group) -> Tensor:
    """Return this rank's rows (k, ...) of x (n*k, ...)."""
    return x.tensor_split(group.size)[group.rank]


def _rows(x: Tensor, flat: Tensor) -> Done:
    """Return a flat tensor as rows like those of x."""
    return Done(flat.view(-1, *x.shape[1:]))


def _library_reduce_scatter(x: Tensor, group: Group, *, in_place: bool = False) -> Handle:
    out = own_part(x, group) if in_place else None
    handle: Handle = group.reduce_scatter(x, out=out, wait=False)
    return handle


LIBRARY = CollectiveBackend(
    lambda x, group: group.all_reduce(x, out=x, wait=False),
    _library_reduce_scatter,
    lambda x, group, out=None: group.all_gather(x, out=out, wait=False),
)
"""gloo's or nccl's, in the background: they overlap with computation until the result is needed."""

RING = CollectiveBackend(
    lambda x, group: Done(ring_all_reduce(x, group, out=x)),
    lambda x, group, in_place=False: _rows(x, ring_reduce_scatter(x, group, in_place=in_place)),
    lambda x, group, out=None: _rows(x, ring_all_gather(x, x.numel() * group.size, group, out=out)),
)
"""The lab's own ring. Its reduce-scatter sends half as many bytes as gloo's."""

SHARED_MEMORY = CollectiveBackend(
    lambda x, group: Done(shared_memory_all_reduce(x, group, out=x)),
    lambda x, group, in_place=False: _rows(
        x, shared_memory_reduce_scatter(x, group, in_place=in_place)
    ),
    lambda x, group, out=None: _rows(
        x, shared_memory_all_gather(x, x.numel() * group.size, group, out=out)
    ),
)
"""For ranks of one host: they write to shared memory, and send nothing."""


_ON_A_CPU = CollectiveBackend(LIBRARY.all_reduce, RING.reduce_scatter, RING.all_gather)


def require_backend(backend: object) -> None:
    """Raise TypeError unless `backend` is a CollectiveBackend or None."""
    if backend is not None and not isinstance(backend, CollectiveBackend):
        raise TypeError(f"backend={backend!r:.60}: give LIBRARY, RING or SHARED_MEMORY")


def chosen_backend(backend: CollectiveBackend | None, group: Group) -> CollectiveBackend:
    """Return `backend`. None means LIBRARY, on a CPU with RING's reduce_scatter and all_gather.

    TypeError for anything but a CollectiveBackend.
    """
    require_backend(backend)
    if backend is None:
        return _ON_A_CPU if group.device.type == "cpu" else LIBRARY
    return backend


def first_order_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let the `backward` of an autograd Function raise RuntimeError under create_graph=True."""

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            words = re.findall("[A-Z][a-z]*", type(ctx).__name__.removesuffix("Backward"))
            name = "_".join(words).lower()
            raise RuntimeError(
                f"create_graph=True: the gradients of {name} have no gradients; leave it out"
            )
        return backward(ctx, *grads)

    return checked
