"""Where an operation's result is put: a new tensor, or the caller's `out`.

The backend wants contiguous memory and works in place. So there are two tensors: `result`, which
the caller gets, and the contiguous `buffer` that the backend writes, which often is the same one.
"""

from __future__ import annotations

import torch

from labkit.comm import tensor_checks
from labkit.comm.member import Member

Tensor = torch.Tensor
_OF_SIZE = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}


def filled(out: Tensor | None, x: Tensor, group: Member) -> Tensor:
    """A result that holds x already, for operations that start from it."""
    if out is None:
        return x.clone(memory_format=torch.contiguous_format)
    result = tensor_checks.output(out, x.shape, x, group)
    is_x = result.data_ptr() == x.data_ptr() and result.stride() == x.stride()
    return result if is_x else result.copy_(x.clone())  # x may overlap with out: out=x.t()


def empty(out: Tensor | None, shape: torch.Size, x: Tensor, group: Member) -> Tensor:
    """A result of `shape` that holds nothing yet."""
    return x.new_empty(shape) if out is None else tensor_checks.output(out, shape, x, group)


def row(out: Tensor | None, numel: int, x: Tensor, group: Member) -> Tensor:
    """A contiguous result (numel,), of which parts are written one by one."""
    result = empty(out, torch.Size([numel]), x, group)
    if not result.is_contiguous():
        raise ValueError(f"out has the stride {result.stride(0)}; pass a contiguous tensor")
    return result


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


def movable(x: Tensor) -> Tensor:
    """The same memory under a dtype that gloo knows, for operations that only move it."""
    if x.dtype == torch.complex128:
        return torch.view_as_real(x)
    return x.view(_OF_SIZE[x.element_size()])


def with_rows(x: Tensor) -> Tensor:
    """A single number as one row."""
    return x[None] if x.dim() == 0 else x
