"""One bit per entry: its sign, and one number for the size of them all.

    0.1 -3.0  0.2  0.7   ->   + - + +  and 1.0, their mean magnitude   ->   1 -1 1 1

Eight signs are one byte. Each parameter has a size of its own: gradients of two layers may differ a
thousandfold. As with top-k the sum has another form than what is added, so the signs are gathered
and not reduced.
Wire: every rank sends (n-1) (numel / 8 + itemsize per parameter) bytes round the ring. For float32
that is an all-reduce's 2(n-1)/n 4 numel divided by 64/n: 32 times less on 2 ranks, 8 times on 8.
Papers: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et al.,
arXiv:1901.09847, for the scale.
"""

import torch
from torch import Tensor

from labkit.comm import Group
from labkit.data_parallel.bucketed import Bucket
from labkit.data_parallel.compression.feedback import Compressor, Exchange


class OneBit(Compressor):
    """Send signs, and the mean magnitude of each parameter's gradient."""

    def of(self, bucket: Bucket) -> Exchange:
        """See `Compressor.of`. TypeError for complex gradients."""
        if bucket.flat.is_complex():
            raise TypeError(
                f"{bucket.label} has gradients of {bucket.flat.dtype}, and complex numbers have no "
                "sign that OneBit could send; take TopK or PowerSGD"
            )
        return super().of(bucket)

    def exchange(self, x: Tensor, bucket: Bucket, group: Group) -> tuple[Tensor, Tensor]:
        """See `Compressor.exchange`."""
        numels = [view.numel() for view in bucket.views]
        parts = x.split(numels)
        own_scales = torch.stack([part.abs().sum() / max(1, part.numel()) for part in parts])
        scales = group.all_gather(own_scales).view(group.size, -1)
        signs = group.all_gather(packed(x >= 0)).view(group.size, -1)
        forms = [
            _signed(of_rank, x) * _each_for(numels, scale)
            for scale, of_rank in zip(scales, signs, strict=True)
        ]
        return torch.stack(forms).sum(0), forms[group.rank]


def _signed(signs: Tensor, like: Tensor) -> Tensor:
    """1 where a bit is set, and -1 elsewhere, as many as `like` has entries."""
    return unpacked(signs, like.numel()).to(like.dtype) * 2 - 1


def _each_for(numels: list[int], scale: Tensor) -> Tensor:
    """scale, (number of parameters,): each as often as its parameter has entries."""
    return torch.cat([one.expand(numel) for one, numel in zip(scale, numels, strict=True)])


def packed(bits: Tensor) -> Tensor:
    """(numel,) of bool -> (ceil(numel / 8),) of uint8; the first bit is the lowest."""
    padded = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    return (padded.to(torch.uint8) << _places(bits)).sum(1, dtype=torch.uint8)


def unpacked(packed_bits: Tensor, numel: int) -> Tensor:
    """The first `numel` bits again, as bool."""
    return ((packed_bits[:, None] >> _places(packed_bits)) & 1).flatten()[:numel].bool()


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
