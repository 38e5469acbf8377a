"""Where an operation's result is put: a new tensor, or the caller's `out`.

The backend wants contiguous memory and works in place. So there are two tensors: `result`, which
the caller gets, and the contiguous `buffer` that the backend writes, which often is the same one.
"""

from __future__ import annotations

import torch

from labkit.comm import checks
from labkit.comm.member import Member

Tensor = torch.Tensor


def filled(out: Tensor | None, x: Tensor, group: Member) -> Tensor:
    """A result that holds x already, for operations that start from it."""
    if out is None:
        return x.clone(memory_format=torch.contiguous_format)
    result = checks.output(out, x.shape, x, group)
    return result if result.data_ptr() == x.data_ptr() else result.copy_(x)


def empty(out: Tensor | None, shape: torch.Size, x: Tensor, group: Member) -> Tensor:
    """A result of `shape` that holds nothing yet."""
    return x.new_empty(shape) if out is None else checks.output(out, shape, x, group)


def delivered(buffer: Tensor, result: Tensor, keep: Tensor | None = None) -> Tensor:
    """The result, once the work is complete. `keep`: what had to stay alive until now."""
    return buffer if buffer is result else result.copy_(buffer)


def reduced(
    buffer: Tensor, result: Tensor, op: str, group: Member, keep: Tensor | None = None
) -> Tensor:
    """`delivered` after a reduction: the backend knows no mean, only sums."""
    if op == "mean":
        buffer.div_(group.size)
    return delivered(buffer, result, keep)


def real(x: Tensor) -> Tensor:
    """A complex tensor as pairs of numbers: sums are the same, and gloo knows no complex ones."""
    return torch.view_as_real(x) if x.is_complex() else x


def with_rows(x: Tensor) -> Tensor:
    """A single number as one row."""
    return x[None] if x.dim() == 0 else x
