"""BucketedDDP: NaiveDDP with a few large messages instead of many small ones. The third rung.

    backward ......................... | all-reduce bucket 0 | bucket 1 | bucket 2 | step

The time of a small message is its latency, whatever its size: 100 parameters cost 100 latencies,
four buckets cost four. Ranks are idle while buckets travel; overlapped.py mends that.

A bucket holds the gradients of many parameters in one flat tensor:

    parameters, in order of use     w0 w1 w2 w3 w4
    backward finishes them          w4 w3 w2 w1 w0
    buckets                         [w4 w3] [w2 w1 w0]       the first is full first

A gradient is a view into its bucket: summing the bucket sums `parameter.grad`, without a copy. The
view has the strides of its parameter (channels_last, for example), like autograd's own gradients,
so that an optimizer reads both in the same memory order.

The order of use is not known before the first step. In most models it is the order of
`module.parameters()`. The first bucket is small, so that the network starts early.

Layout: as NaiveDDP, and gradients are views into the buckets.
Wire: 2(n-1)/n of the gradients' bytes per rank, in one all-reduce per bucket.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 3.2.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.collectives.backend import Handle
from labkit.comm import Group
from labkit.data_parallel.naive import gradients_of
from labkit.data_parallel.reduction import AllReduce, library_all_reduce, reduction_of
from labkit.data_parallel.replica import (
    Replica,
    require_as_wrapped,
    require_plain_numbers,
    shaped_like,
    trainable_parameters,
)

MIB = 2**20
BUCKET_BYTES = 25 * MIB
FIRST_BUCKET_BYTES = 1 * MIB
_SIZES = "bytes from 1; 25 * 2**20 is usual, and 1 gives every parameter a bucket of its own"


@dataclass(frozen=True, eq=False)
class Bucket:
    """Gradients of some parameters of one dtype, one after the other in `flat`.

    The elements of each gradient are in the memory order of its parameter.
    """

    number: int
    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    flat: Tensor
    """(sum of numels,)"""
    views: tuple[Tensor, ...]
    """views[i]: the part of `flat` that is the gradient of parameters[i], in its layout."""

    @property
    def label(self) -> str:
        """The bucket's name in journals and errors."""
        ends = dict.fromkeys((self.names[0], self.names[-1]))  # equal if it has one parameter
        return f"bucket {self.number}: {' to '.join(ends)}"

    def take(self, index: int, scale: float) -> None:
        """Move a parameter's gradient, times `scale`, into the bucket; a missing one counts as 0.

        TypeError for a sparse gradient, and for one that has a graph of its own.
        """
        parameter, view = self.parameters[index], self.views[index]
        gradient = parameter.grad
        require_plain_numbers(gradient, self.names[index])
        if gradient is None:
            view.zero_()
        elif gradient.data_ptr() == view.data_ptr():
            view.mul_(scale)  # already a view: backward has added to it in place
        else:
            torch.mul(gradient, scale, out=view)
        # A GradientShard stays one, in the bucket too.
        parameter.grad = view if gradient is None else view.as_subclass(type(gradient))


class BucketedDDP(Replica):
    """A module whose gradients `reduce_gradients` averages over the ranks, bucket by bucket.

    Gradients are views into buckets, which the next step overwrites: `.clone()` what is to be kept.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        all_reduce: AllReduce = library_all_reduce,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        broadcast_buffers: bool = True,
    ) -> None:
        """bucket_bytes: see `make_buckets`. See `Replica` for the other arguments."""
        # Bad arguments are refused before anything is sent.
        reduction = reduction_of(all_reduce)
        buckets = make_buckets(trainable_parameters(module), bucket_bytes)
        reductions = [reduction.for_bucket(bucket) for bucket in buckets]
        super().__init__(module, group, broadcast_buffers=broadcast_buffers)
        self._reduction, self._reductions = reduction, reductions
        self.buckets = reduction.place_buckets(buckets)

    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. Call it after backward, on every rank.

        Wire: one all-reduce per bucket; all are in flight together.
        Before anything is sent, it raises RuntimeError if a trained parameter has no gradient, or
        if parameters were added, frozen, unfrozen, converted or moved since the module was wrapped,
        and TypeError for a sparse gradient.
        """
        require_as_wrapped(self.module, self._as_wrapped)
        gradients_of(self)
        in_flight = []
        for bucket in self.buckets:
            for index in range(len(bucket.parameters)):
                bucket.take(index, 1 / self.group.size)
            in_flight.append(self._start(bucket))
        for handle in in_flight:
            handle.wait()

    def _start(self, bucket: Bucket) -> Handle:
        """Start to sum a bucket over the ranks."""
        with self.group.label(self.label_of(bucket.label)):
            return self._reductions[bucket.number].start(bucket.flat, self.group)


def make_buckets(
    parameters: Mapping[str, nn.Parameter], bucket_bytes: int = BUCKET_BYTES
) -> list[Bucket]:
    """Cut the parameters, last first, into buckets of one dtype and device each.

    As in torch, a bucket is closed by the parameter with which it reaches its size. Memory: all
    gradients once. TypeError and ValueError for a size that is not a whole number above 0.
    """
    cuts = assign_to_buckets(parameters, bucket_bytes)
    return [
        make_bucket(_zeros_for(members), number, members) for number, members in enumerate(cuts)
    ]


def assign_to_buckets(
    parameters: Mapping[str, nn.Parameter], bucket_bytes: int = BUCKET_BYTES
) -> list[dict[str, nn.Parameter]]:
    """Return the parameters of each bucket, before it has memory. See `make_buckets`."""
    bucket_bytes = arguments.whole("bucket_bytes", bucket_bytes, _SIZES)
    closed: list[dict[str, nn.Parameter]] = []
    filling: dict[tuple[torch.dtype, torch.device], dict[str, nn.Parameter]] = {}
    for name in reversed(list(parameters)):
        parameter = parameters[name]
        kind = (parameter.dtype, parameter.device)
        members = filling.setdefault(kind, {})
        members[name] = parameter
        limit = bucket_bytes if closed else min(FIRST_BUCKET_BYTES, bucket_bytes)
        if sum(p.nbytes for p in members.values()) >= limit:
            closed.append(filling.pop(kind))
    return [*closed, *filling.values()]


def make_bucket(flat: Tensor, number: int, members: Mapping[str, nn.Parameter]) -> Bucket:
    """Return the bucket of these parameters in the memory `flat`, (sum of numels,)."""
    parameters = tuple(members.values())
    return Bucket(number, tuple(members), parameters, flat, shaped(flat, parameters))


def shaped(flat: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return views of `flat`, (sum of numels,), with the shapes and strides of the parameters."""
    parts = flat.split([parameter.numel() for parameter in parameters])
    return tuple(map(shaped_like, parts, parameters))


def _zeros_for(members: Mapping[str, nn.Parameter]) -> Tensor:
    parameters = list(members.values())
    dtype, device = parameters[0].dtype, parameters[0].device
    return torch.zeros(sum(p.numel() for p in parameters), dtype=dtype, device=device)
