"""What is done to tensors under way, so that mistakes show: one is changed, a buffer is spoiled."""

from contextlib import suppress

import torch

from labkit.grade.exact import bytes_of

Tensor = torch.Tensor
_ODD_NUMBER = 113  # fits every integer dtype


def change_one(x: Tensor) -> Tensor:
    """`x`, with one more in its first element; or its lowest bit changed, where it is no number.

    That may be a view of another dtype: then one more is no difference to a huge number, too much
    for a subnormal one (a small integer is one, as a float), and some dtypes do not add.
    """
    if x.numel():
        first = x.detach()[(0,) * x.dim()].reshape(1)  # a view, and so are its bytes
        before = bytes_of(first).clone()
        if not _is_subnormal(first):
            with suppress(RuntimeError):  # bool, uint16, 8-bit floats
                first += 1
        if torch.equal(bytes_of(first), before):
            bytes_of(first)[0] ^= 1
    return x


def _is_subnormal(x: Tensor) -> bool:
    return x.is_floating_point() and bool(0 < abs(x.item()) < torch.finfo(x.dtype).tiny)


def spoil(buffer: Tensor) -> None:
    """Fill it with NaN, or with an odd number, until what belongs there has come."""
    is_number = buffer.is_floating_point() or buffer.is_complex()
    buffer.detach().fill_(float("nan") if is_number else _ODD_NUMBER)
