"""PowerSGD: a gradient matrix as a product of two thin ones, which can be summed.

    M (a, b)   about   P (a, r)  times  Q' (r, b)

    P = sum over ranks of M Q,   orthonormal columns      one all-reduce of a r
    Q = sum over ranks of M' P                            one all-reduce of b r

One step of power iteration towards the r largest singular vectors; Q is kept for the next step, in
which gradients are not much different. M Q is linear in M, so the all-reduces sum what they should:
unlike top-k and signs its bytes do not grow with the ranks. (torch's hook sends the first thousand
steps whole, since gradients change too fast at first for the guess to follow.)
Wire: two all-reduces per bucket, of all P and all Q. Vectors such as biases go with the P, whole.
Paper: Vogels, Karimireddy and Jaggi, "PowerSGD", arXiv:1905.13727.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group
from labkit.data_parallel.bucketed import Bucket, shaped
from labkit.data_parallel.compression.feedback import Compressor


class PowerSGD(Compressor):
    """Send matrices of rank `rank` instead of gradients.

    A gradient of more than two dims counts as (first, product of the others). One that would not
    get smaller is sent whole.
    """

    def __init__(self, rank: int = 2, *, error_feedback: bool = True) -> None:
        """TypeError and ValueError for a rank that is no whole number from 1."""
        super().__init__(error_feedback=error_feedback)
        allowed = "a product of matrices has a rank from 1; 2 is usual"
        self.rank = arguments.whole("rank", rank, allowed)
        self._right: WeakKeyDictionary[Bucket, list[Tensor]] = WeakKeyDictionary()

    def exchange(self, x: Tensor, bucket: Bucket, group: Group) -> tuple[Tensor, Tensor]:
        """See `Compressor.exchange`."""
        parts = shaped(x, bucket.parameters)
        matrices = [part.reshape(len(part), -1) for part in parts if self._is_large(part)]
        if bucket not in self._right:
            self._right[bucket] = [self._first_guess(matrix) for matrix in matrices]
        guesses = self._right[bucket]
        lefts = [matrix @ guess for matrix, guess in zip(matrices, guesses, strict=True)]
        whole = [part.flatten() for part in parts if not self._is_large(part)]
        *lefts, summed_whole = _summed([*lefts, torch.cat([x[:0], *whole])], group)
        lefts = [_orthonormal(left) for left in lefts]
        rights = [matrix.mH @ left for matrix, left in zip(matrices, lefts, strict=True)]
        rights = _summed(rights, group)
        self._right[bucket] = list(map(_next_guess, rights, guesses))
        total, own = torch.empty_like(x), x.clone()
        views = [shaped(each, bucket.parameters) for each in (total, own)]
        products = iter(left @ right.mH for left, right in zip(lefts, rights, strict=True))
        for summed, share in zip(*views, strict=True):
            if self._is_large(summed):
                summed.copy_(next(products).view(summed.shape))
                share.copy_(summed / group.size)  # an nth each; of what is whole, a rank's own
            else:
                summed.copy_(summed_whole[: summed.numel()].view(summed.shape))
                summed_whole = summed_whole[summed.numel() :]
        return total, own

    def _is_large(self, gradient: Tensor) -> bool:
        """Whether P and Q together are smaller."""
        if gradient.dim() < 2 or not gradient.numel():
            return False
        rows, columns = len(gradient), gradient.numel() // len(gradient)
        return (rows + columns) * self.rank < rows * columns

    def _first_guess(self, matrix: Tensor) -> Tensor:
        """The same on every rank."""
        generator = torch.Generator().manual_seed(matrix.shape[0] * 8191 + matrix.shape[1])
        guess = torch.randn(matrix.shape[1], self.rank, generator=generator, device="cpu")
        return guess.to(matrix)


def _next_guess(right: Tensor, guess: Tensor) -> Tensor:
    """`right`, unless it is none: neither an overflow nor zeros. The host need not know which."""
    return torch.where(torch.isfinite(right).all() & right.any(), right, guess)


def _orthonormal(columns: Tensor) -> Tensor:
    """In float32 at least: QR is not made for half precision."""
    wide = columns.to(torch.promote_types(columns.dtype, torch.float32))
    return torch.linalg.qr(wide)[0].to(columns.dtype)


def _summed(tensors: list[Tensor], group: Group) -> list[Tensor]:
    """All of them in one all-reduce."""
    flat = torch.cat([tensor.flatten() for tensor in tensors]) if tensors else None
    if flat is None:
        return []
    group.all_reduce(flat, out=flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
