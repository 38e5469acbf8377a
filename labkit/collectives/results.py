"""Where a collective puts its result: a new tensor, or the caller's `out`."""

import torch

from labkit.comm import Group, tensor_arguments


def result_like(x: torch.Tensor, out: torch.Tensor | None, group: Group) -> torch.Tensor:
    """A contiguous tensor like `x` for a sum of `x` over ranks: `out`, or a new one.

    It holds nothing yet, unless out=x. TypeError for what has no sum: no tensor, a sparse one,
    booleans, dtypes that torch does not add. ValueError for a tensor on another device than the
    group's, and for an `out` unlike x.
    """
    return copy_like(tensor_arguments.summable(tensor_arguments.tensor(x, group)), out, group)


def copy_like(x: torch.Tensor, out: torch.Tensor | None, group: Group) -> torch.Tensor:
    """A contiguous tensor like `x` for elements that only travel, of any dtype; as `result_like`.

    TypeError for no tensor and a sparse one, ValueError for an `out` unlike x.
    """
    x = tensor_arguments.tensor(x, group)
    if out is None:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    out = tensor_arguments.target(out, group)
    if out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous and like x, {tuple(x.shape)} of {x.dtype}; it is "
            f"{tuple(out.shape)} of {out.dtype}. Leave it out to get a new tensor"
        )
    if out.data_ptr() != x.data_ptr() and _overlap(x, out):
        raise ValueError(
            "out shares some of x's memory, and what is written there would be read as x; pass "
            "out=x, or a tensor of its own"
        )
    return out


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the bytes from the first to the last element of both have any in common."""
    if not x.numel() or x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
        return False
    (x_from, x_to), (y_from, y_to) = _span(x), _span(y)
    return x_from < y_to and y_from < x_to


def _span(x: torch.Tensor) -> tuple[int, int]:
    last = sum((length - 1) * stride for length, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()
