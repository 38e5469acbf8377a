"""Tensors compared bit by bit: NaN equals itself there, and -0.0 differs from 0.0."""

import torch

Tensor = torch.Tensor
_LARGEST_ELEMENT_BYTES = 16


def bytes_of(x: Tensor) -> Tensor:
    """x's elements as bytes, uint8 [x.nbytes], in their order; x's own memory where it can be."""
    if not x.numel():  # counts as contiguous whatever its strides, which `view` does not like
        return torch.empty(0, dtype=torch.uint8)
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether shape, dtype and every bit are the same; the memory layout may differ."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(bytes_of(one), bytes_of(other))
    )


def differ_at(one: Tensor, other: Tensor) -> Tensor:
    """Of two tensors of one shape and dtype: a mask over the flattened elements."""
    differs = bytes_of(one) != bytes_of(other)
    return differs.reshape(one.numel(), one.element_size()).any(1)


def differ_in_one_element(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one size differ, and in no more bytes than an element can have.

    Of any dtype: what was changed in a tensor may have been a view of it in another dtype.
    """
    places = (bytes_of(one) != bytes_of(other)).nonzero()
    return bool(len(places)) and int(places[-1] - places[0]) < _LARGEST_ELEMENT_BYTES
