"""A sequence that is cut over ranks, for ring_attention_step, and the attention that is right."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.grade.evidence import Case

_MAX_DELAY_S = 0.002
_LARGE = 300.0  # scores of thousands: exp of them is inf in float64, too


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have; by rank, (H, t, K)."""

    q: Sequence[Tensor]
    k: Sequence[Tensor]
    v: Sequence[Tensor]

    @property
    def sizes(self) -> list[int]:
        """Tokens of each rank."""
        return [each.shape[1] for each in self.q]

    @property
    def num_features(self) -> int:
        """K"""
        return self.q[0].shape[2]

    def begin(self, rank: int) -> int:
        """The position of a rank's first token."""
        return sum(self.sizes[:rank])

    def block_bytes(self, rank: int) -> int:
        """Of a rank's keys and values."""
        return self.k[rank].nbytes + self.v[rank].nbytes

    @property
    def expected(self) -> list[Tensor]:
        """By rank, in float64: the oracle, of the whole sequence at once."""
        q, k, v = (torch.cat(list(each), 1).double() for each in (self.q, self.k, self.v))
        scores = q @ k.mT * self.num_features**-0.5
        is_later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(is_later, -torch.inf).softmax(2)
        return list((weights @ v).split(self.sizes, 1))

    @property
    def tolerance(self) -> float:
        """By how much an output may differ; see softmax_inputs, of which the roundings are."""
        q, k, v = (torch.cat(list(each), 1).double() for each in (self.q, self.k, self.v))
        largest = float((q.abs() @ k.abs().mT).max()) * self.num_features**-0.5
        roundings = sum(self.sizes) + (len(self.q) + self.num_features) * max(largest, 1)
        return float(2 * torch.finfo(self.q[0].dtype).eps * roundings * v.abs().max())


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    return Given(*([each[i] for each in case.arguments] for i in range(3)))


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Equal shares, unequal ones, large scores, a late rank; in the last, a message is changed."""
    n = world_size
    tokens = rng.randrange(20, 26)
    even = _case("equal shares", n, n * tokens, 1.0, rng)
    large = _case("scores of thousands", n, n * tokens, _LARGE, rng)
    if n == 1:
        return [even, large]
    uneven = n * tokens + rng.randrange(1, n)
    late, altered = rng.randrange(n), rng.randrange(1, n)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    delayed = _case(f"unequal shares, rank {late} late", n, uneven, 1.0, rng)
    return [
        even,
        _case("unequal shares", n, uneven, 1.0, rng),
        large,
        replace(delayed, delays_s=delays_s),
        # What a rank receives first comes from before its own share, unless it is rank 0.
        replace(even, altered=(altered, 1)),
    ]


def _case(label: str, n: int, num_tokens: int, largest: float, rng: random.Random) -> Case:
    heads, features = rng.randrange(2, 4), rng.randrange(5, 9)
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def shares() -> list[Tensor]:
        x = torch.randn(heads, num_tokens, features, generator=generator, dtype=torch.float64)
        return [each.contiguous() for each in x.tensor_split(n, 1)]

    q = [largest * each for each in shares()]
    arguments = zip(q, shares(), shares(), [num_tokens] * n, strict=True)
    return Case(f"{num_tokens} tokens, {label}", tuple(arguments), (0.0,) * n)
