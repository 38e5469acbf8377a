"""Gradient compression for DDP: OneBit, TopK and PowerSGD.

    model = DDP(module, world, TopK(0.01))

Error feedback: each rank keeps the part of its gradient that compression left out, the residual,
and adds it to the next gradient.

    step t, on each rank    c = g + e          the gradient plus the residual
                            send a compressed form of c
                            e = c - the form that was sent

Summed over the steps, the applied updates are the sum of all gradients minus the last residuals. So
small entries of a gradient arrive late; without feedback they would never arrive. The theory holds
for SGD. Adam divides by a running average of squared gradients, which compression distorts; 1-bit
Adam (arXiv:2102.02888) first trains without compression until that average is stable. A residual
has the loss scale of its step: under dynamic loss scaling it is added at a different scale.

OneBit: the sign of each entry, and one magnitude for all entries of a parameter.

    0.1 -3.0  0.2  0.7   ->   + - + +  and 1.0, their mean magnitude   ->   1 -1 1 1

Eight signs are one byte. A reduction cannot sum signs on the way, so they are all-gathered.
Wire: every rank sends (n-1) (numel / 8 + itemsize per parameter) bytes round the ring. For float32
that is 64/n times less than an all-reduce: 32 times on 2 ranks, 8 times on 8.

TopK: only the largest entries of each bucket are sent, with their indices.

    rank 0   0.1 -3.0  0.2  0.9     k = 1: (1, -3.0)  -+
    rank 1   2.0  0.1 -0.3  0.4     k = 1: (0,  2.0)  -+- all-gather ->  2.0 -3.0  0  0

The indices differ by rank, so this too is an all-gather, whose bytes grow with the ranks.
Wire: every rank sends (n-1) k (8 + itemsize) bytes round the ring, k = ratio times the numel.
An all-reduce sends 2(n-1)/n numel itemsize: with float32 top-k sends less below ratio = 2/(3n).

PowerSGD: a gradient matrix as a product of two thin ones, which can be summed.

    M (a, b)   about   P (a, r)  times  Q' (r, b)

    P = sum over ranks of M Q,   orthonormal columns      one all-reduce of a r
    Q = sum over ranks of M' P                            one all-reduce of b r

This is one step of power iteration towards the r largest singular vectors. The next step starts
with this Q, because gradients change little between steps. M Q is linear in M, so all-reduces can
sum it, and the bytes do not grow with the ranks. torch's hook sends the gradients of the first
thousand steps uncompressed, because they change too fast at first.
Wire: two all-reduces per bucket, one of all P and one of all Q. Vectors such as biases are sent
uncompressed with the P.

Papers: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et al.,
"Error feedback fixes SignSGD", arXiv:1901.09847; Aji and Heafield, "Sparse communication for
distributed gradient descent", arXiv:1704.05021 (deep gradient compression, arXiv:1712.01887, adds
what very small ratios need: momentum correction, clipping and a warmup); Vogels, Karimireddy and
Jaggi, "PowerSGD", arXiv:1905.13727.
"""

import math
from abc import abstractmethod
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from labkit import arguments
from labkit.collectives.backend import Done, Handle
from labkit.comm import Group
from labkit.data_parallel.bucketed import Bucket, shaped
from labkit.data_parallel.reduction import Reduction

__all__ = ["Compressor", "OneBit", "PowerSGD", "TopK"]


class Compressor(Reduction):
    """A method of compression, for any number of buckets.

    It blocks: backward waits for the exchange of each bucket. With BackgroundAllReduce,
    DDP(module, world, BackgroundAllReduce(TopK(0.01), world)), backward goes on during the
    exchange.
    """

    remembers_buckets = True

    def __init__(self, *, error_feedback: bool = True) -> None:
        """error_feedback: False drops the residual, to show its effect on training."""
        self.error_feedback = error_feedback

    def for_bucket(self, bucket: Bucket) -> "Exchange":
        """Return the compressed all-reduce of one bucket, which keeps the bucket's residual."""
        return Exchange(self, bucket, torch.zeros_like(bucket.flat))

    def start(self, x: Tensor, group: Group) -> Handle:
        """Raise TypeError: only the Exchange of a bucket, which `of` returns, can start."""
        raise TypeError(
            f"{type(self).__name__} works on buckets, and there are none here; wrap the module in "
            "BucketedDDP or DDP"
        )

    @abstractmethod
    def exchange(self, x: Tensor, bucket: Bucket, group: Group) -> tuple[Tensor, Tensor]:
        """Send `x`, (numel,), compressed. Return the sum over the ranks, and this rank's term.

        x minus this rank's term is the residual.
        """


class Exchange(Reduction):
    """The compressed all-reduce of one bucket. `owed`: this rank's residual, (numel,)."""

    def __init__(self, compressor: Compressor, bucket: Bucket, owed: Tensor) -> None:
        """Called by `Compressor.of`."""
        self._compressor, self._bucket, self.owed = compressor, bucket, owed

    def start(self, x: Tensor, group: Group) -> Handle:
        """Replace `x` by an approximation of its sum over the ranks, the same on every rank."""
        x.add_(self.owed)
        total, own = self._compressor.exchange(x, self._bucket, group)
        if self._compressor.error_feedback:
            # After an overflow the residual stays. All ranks have the same sum, so all detect the
            # overflow and skip the step. With `if` instead of `where` the host would wait for the
            # GPU.
            is_finite = torch.isfinite(total).all()
            self.owed = torch.where(is_finite, x - own, self.owed)
        return Done(x.copy_(total))


class OneBit(Compressor):
    """Send signs, and the mean magnitude of each parameter's gradient."""

    def exchange(self, x: Tensor, bucket: Bucket, group: Group) -> tuple[Tensor, Tensor]:
        """See `Compressor.exchange`."""
        numels = [view.numel() for view in bucket.views]
        parts = x.split(numels)
        own_scales = torch.stack([part.abs().sum() / max(1, part.numel()) for part in parts])
        scales = group.all_gather(own_scales).view(group.size, -1)
        signs = group.all_gather(packed(x >= 0)).view(group.size, -1)
        terms = [
            _plus_or_minus_one(signs_of_rank, x) * _per_entry(scales_of_rank, numels)
            for scales_of_rank, signs_of_rank in zip(scales, signs, strict=True)
        ]
        return torch.stack(terms).sum(0), terms[group.rank]


def _per_entry(scales: Tensor, numels: list[int]) -> Tensor:
    """Repeat each parameter's scale for every entry of the parameter: (sum of numels,)."""
    return torch.cat([scale.expand(numel) for scale, numel in zip(scales, numels, strict=True)])


def _plus_or_minus_one(signs: Tensor, like: Tensor) -> Tensor:
    """Return a tensor like `like`: 1 where a bit is set, -1 elsewhere."""
    return unpacked(signs, like.numel()).to(like.dtype) * 2 - 1


def packed(bits: Tensor) -> Tensor:
    """Pack bools (numel,) into bytes (ceil(numel / 8),). The first bool is the lowest bit."""
    padded = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    return (padded.to(torch.uint8) << _bit_positions(bits)).sum(1, dtype=torch.uint8)


def unpacked(packed_bits: Tensor, numel: int) -> Tensor:
    """Return the first `numel` bits as bools."""
    return ((packed_bits[:, None] >> _bit_positions(packed_bits)) & 1).flatten()[:numel].bool()


class TopK(Compressor):
    """Send the `ratio` of entries with the largest magnitudes, at least one."""

    def __init__(self, ratio: float, *, error_feedback: bool = True) -> None:
        """ratio: above 0, up to 1. TypeError and ValueError for any other."""
        super().__init__(error_feedback=error_feedback)
        allowed = "a share of the entries, above 0 and up to 1, such as 0.01 for one in a hundred"
        self.ratio = arguments.number("ratio", ratio, allowed, above=0, most=1)

    def exchange(self, x: Tensor, bucket: Bucket, group: Group) -> tuple[Tensor, Tensor]:
        """See `Compressor.exchange`. Wire: k indices of 8 bytes and k values, all-gathered."""
        k = math.ceil(self.ratio * x.numel())
        indices = x.abs().topk(k, sorted=False).indices
        all_indices = group.all_gather(indices)
        all_values = group.all_gather(x[indices])
        own = torch.zeros_like(x).scatter_(0, indices, x[indices])
        total = torch.zeros_like(x)
        # Rank by rank: an index occurs once within a rank's, so the order of additions is fixed,
        # and the result is bit-equal on all ranks, on GPUs too.
        for of_rank, values in zip(all_indices.split(k), all_values.split(k), strict=True):
            total[of_rank] += values
        return total, own


def _bit_positions(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


class PowerSGD(Compressor):
    """Send two factors P and Q instead of each gradient, a matrix: their product has rank `rank`.

    A gradient of more than two dims is reshaped to (first, product of the others). A gradient whose
    factors would not be smaller is sent uncompressed.
    """

    def __init__(self, rank: int = 2, *, error_feedback: bool = True) -> None:
        """Raise TypeError and ValueError for a rank that is not a whole number above 0."""
        super().__init__(error_feedback=error_feedback)
        allowed = "a product of matrices has a rank from 1; 2 is usual"
        self.rank = arguments.whole("rank", rank, allowed)
        self._last_qs: WeakKeyDictionary[Bucket, list[Tensor]] = WeakKeyDictionary()

    def exchange(self, x: Tensor, bucket: Bucket, group: Group) -> tuple[Tensor, Tensor]:
        """See `Compressor.exchange`."""
        parts = shaped(x, bucket.parameters)
        matrices = [part.reshape(len(part), -1) for part in parts if self._is_large(part)]
        if bucket not in self._last_qs:
            self._last_qs[bucket] = [self._random_q(matrix) for matrix in matrices]
        last_qs = self._last_qs[bucket]
        ps = [matrix @ q for matrix, q in zip(matrices, last_qs, strict=True)]
        small = [part.flatten() for part in parts if not self._is_large(part)]
        *ps, summed_small = _summed([*ps, torch.cat([x[:0], *small])], group)
        ps = [_orthonormal(p) for p in ps]
        qs = [matrix.mH @ p for matrix, p in zip(matrices, ps, strict=True)]
        qs = _summed(qs, group)
        self._last_qs[bucket] = list(map(_next_q, qs, last_qs))
        total, own = torch.empty_like(x), x.clone()
        views = [shaped(each, bucket.parameters) for each in (total, own)]
        products = iter(p @ q.mH for p, q in zip(ps, qs, strict=True))
        for summed, term in zip(*views, strict=True):
            if self._is_large(summed):
                summed.copy_(next(products).view(summed.shape))
                term.copy_(summed / group.size)  # P and Q are sums: each rank's term is 1/n
            else:
                summed.copy_(summed_small[: summed.numel()].view(summed.shape))
                summed_small = summed_small[summed.numel() :]
        return total, own

    def _is_large(self, gradient: Tensor) -> bool:
        """Return whether P and Q together are smaller than the gradient."""
        if gradient.dim() < 2 or not gradient.numel():
            return False
        rows, columns = len(gradient), gradient.numel() // len(gradient)
        return (rows + columns) * self.rank < rows * columns

    def _random_q(self, matrix: Tensor) -> Tensor:
        """Return a random Q, the same on every rank."""
        generator = torch.Generator().manual_seed(matrix.shape[0] * 8191 + matrix.shape[1])
        q = torch.randn(matrix.shape[1], self.rank, generator=generator, device="cpu")
        return q.to(matrix)


def _next_q(q: Tensor, last_q: Tensor) -> Tensor:
    """Return `q`, or `last_q` if `q` has an overflow or only zeros, without a host sync."""
    return torch.where(torch.isfinite(q).all() & q.any(), q, last_q)


def _orthonormal(columns: Tensor) -> Tensor:
    """Make columns orthonormal, in float32 at least: torch has no QR in half precision."""
    wide = columns.to(torch.promote_types(columns.dtype, torch.float32))
    return torch.linalg.qr(wide)[0].to(columns.dtype)


def _summed(tensors: list[Tensor], group: Group) -> list[Tensor]:
    """Sum all tensors in one all-reduce."""
    flat = torch.cat([tensor.flatten() for tensor in tensors]) if tensors else None
    if flat is None:
        return []
    group.all_reduce(flat, out=flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
