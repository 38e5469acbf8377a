"""Buckets: gradients of many parameters in one flat tensor, to be reduced in one message.

    parameters, in order of use     w0 w1 w2 w3 w4
    backward finishes them          w4 w3 w2 w1 w0
    buckets                         [w4 w3] [w2 w1 w0]       the first is full first

A gradient is a view into its bucket: what is summed there is summed in `parameter.grad`, without a
copy. It has the strides of its parameter, channels_last for example, as autograd's own gradients
have: an optimizer goes through both in one order.

The order of use is not known before a step; that of `module.parameters()`, in which modules are
made, is mostly the same. (Where modules are made in the order opposite to their use, no bucket is
full before the last gradient, and nothing overlaps: arrival.py cuts again when the order is known.)
The first bucket is small, so that the network has work early.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit import arguments

MIB = 2**20
BUCKET_BYTES = 25 * MIB
FIRST_BUCKET_BYTES = 1 * MIB
_SIZES = "bytes from 1; 25 * 2**20 is usual, and 1 gives every parameter a bucket of its own"


@dataclass(frozen=True, eq=False)
class Bucket:
    """Gradients of some parameters of one dtype, one after the other in `flat`.

    Each as it lies in memory: its elements in the order of its parameter's.
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
        """What it is for, in words."""
        ends = dict.fromkeys((self.names[0], self.names[-1]))  # one name, where it has one
        return f"bucket {self.number}: {' to '.join(ends)}"

    def shaped(self, x: Tensor) -> tuple[Tensor, ...]:
        """Views of `x`, (sum of numels,), such as `flat`: in the parameters' shapes and strides."""
        parts = x.split([parameter.numel() for parameter in self.parameters])
        return tuple(map(shaped_like, parts, self.parameters))

    def take(self, index: int, scale: float) -> None:
        """Move the gradient of one parameter into the bucket, times `scale`; none counts as 0.

        TypeError for a sparse gradient, and for one that has a graph of its own.
        """
        parameter, view = self.parameters[index], self.views[index]
        gradient = parameter.grad
        require_plain_numbers(gradient, self.names[index])
        if gradient is None:
            view.zero_()
        elif gradient.data_ptr() == view.data_ptr():
            view.mul_(scale)  # it was left there, and backward has added to it
        else:
            torch.mul(gradient, scale, out=view)
        parameter.grad = view


def make_buckets(
    parameters: Mapping[str, nn.Parameter],
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> list[Bucket]:
    """Cut the parameters, last first, into buckets of one dtype and device each.

    A bucket is closed by the parameter with which it reaches its size, as torch's are. Memory: all
    gradients once. TypeError and ValueError for a size that is no whole number from 1.
    """
    cuts = cut(parameters, bucket_bytes, first_bucket_bytes)
    return [_bucket(number, members, _zeros_for(members)) for number, members in enumerate(cuts)]


def cut(
    parameters: Mapping[str, nn.Parameter],
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> list[dict[str, nn.Parameter]]:
    """What goes into each bucket, before there is memory for it. See `make_buckets`."""
    bucket_bytes = arguments.whole("bucket_bytes", bucket_bytes, _SIZES)
    first_bucket_bytes = arguments.whole("first_bucket_bytes", first_bucket_bytes, _SIZES)
    closed: list[dict[str, nn.Parameter]] = []
    filling: dict[tuple[torch.dtype, torch.device], dict[str, nn.Parameter]] = {}
    for name in reversed(list(parameters)):
        parameter = parameters[name]
        kind = (parameter.dtype, parameter.device)
        members = filling.setdefault(kind, {})
        members[name] = parameter
        limit = bucket_bytes if closed else min(first_bucket_bytes, bucket_bytes)
        if sum(p.nbytes for p in members.values()) >= limit:
            closed.append(filling.pop(kind))
    return [*closed, *filling.values()]


def moved(bucket: Bucket, flat: Tensor) -> Bucket:
    """The same bucket in other memory, `flat`, with the gradients that lie in it."""
    members = dict(zip(bucket.names, bucket.parameters, strict=True))
    new = _bucket(bucket.number, members, flat.copy_(bucket.flat))
    for parameter, old, view in zip(bucket.parameters, bucket.views, new.views, strict=True):
        if parameter.grad is not None and parameter.grad.data_ptr() == old.data_ptr():
            parameter.grad = view
    return new


def places_of(buckets: Iterable[Bucket]) -> dict[str, tuple[int, int]]:
    """By parameter: the number of its bucket, and its own in there."""
    return {
        name: (bucket.number, index)
        for bucket in buckets
        for index, name in enumerate(bucket.names)
    }


def _zeros_for(members: Mapping[str, nn.Parameter]) -> Tensor:
    parameters = list(members.values())
    dtype, device = parameters[0].dtype, parameters[0].device
    return torch.zeros(sum(p.numel() for p in parameters), dtype=dtype, device=device)


def _bucket(number: int, members: Mapping[str, nn.Parameter], flat: Tensor) -> Bucket:
    parameters = tuple(members.values())
    parts = flat.split([parameter.numel() for parameter in parameters])
    views = tuple(map(shaped_like, parts, parameters))
    return Bucket(number, tuple(members), parameters, flat, views)


def require_plain_numbers(gradient: Tensor | None, name: str) -> None:
    """TypeError for a sparse gradient, and for one that has a graph of its own."""
    if gradient is not None and (gradient.is_sparse or gradient.requires_grad):
        raise TypeError(
            f"the gradient of {name} is sparse or has a graph of its own, and buckets hold plain "
            "numbers: pass sparse=False to the embedding, or leave out create_graph=True"
        )


def shaped_like(part: Tensor, parameter: Tensor) -> Tensor:
    """`part`, (numel,), in the layout of a parameter; without the gaps, where that has some."""
    layout = torch.empty_like(parameter, device="meta")
    return part.as_strided(layout.shape, layout.stride())
