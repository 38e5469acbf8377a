"""Queries, and blocks of keys and values, for online_softmax; and the attention that is right.

Suffixes as in labkit/model.py, and S for the keys of a block.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.grade.evidence import Case

Block = tuple[Tensor, Tensor, Tensor]
"""k_SK, v_SK, mask_TS"""
MANY = 8
"""From so many blocks on, bytes are counted."""
_FAR = 1e4
_NUMBERS = (5, 6, 7, 10, 11)  # of features: none has a power of two for its root


@dataclass(frozen=True)
class Given:
    """What a case is made of."""

    q: Tensor
    blocks: Sequence[Block]
    scale: float

    @property
    def whole(self) -> Block:
        """All blocks as one."""
        keys, values, masks = zip(*self.blocks, strict=True)
        return torch.cat(keys), torch.cat(values), torch.cat(masks, 1)

    @property
    def blind(self) -> Tensor:
        """(T,) Queries that may see no key."""
        return ~self.whole[2].any(1)

    @property
    def gaps(self) -> Tensor:
        """(T,) Queries that may see no key of some block."""
        return torch.stack([~mask.any(1) for _, _, mask in self.blocks]).any(0)

    @property
    def scores(self) -> Tensor:
        """(T, all keys) in float64; -inf where a key is not seen."""
        k, _, mask = self.whole
        return (self.scale * (self.q.double() @ k.double().T)).masked_fill(~mask, -torch.inf)

    @property
    def expected(self) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp in float64: the oracle."""
        lse = self.scores.logsumexp(1)
        weights = torch.exp(self.scores - lse.masked_fill(self.blind, 0).unsqueeze(1))
        return weights @ self.whole[1].double(), lse

    @property
    def tolerance(self) -> float:
        """For o relative to the largest value, and for lse absolute.

        A score is rounded by K eps of the sum of its |q k|, and by as much in each of the B
        log-sum-exps by which an answer may merge blocks; exp makes relative errors of these. A sum
        of N weights adds N roundings.
        """
        k, _, _ = self.whole
        largest = float(self.scale * (self.q.double().abs() @ k.double().abs().T).max())
        roundings = len(k) + (len(self.blocks) + len(self.q[0])) * max(largest, 1)
        return float(2 * torch.finfo(self.q.dtype).eps * roundings)


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    q, blocks, scale = case.arguments[0]
    return Given(q, [(k, v, mask) for k, v, mask in blocks], scale)


def random_cases(rng: random.Random) -> list[Case]:
    """From one block that all see, to blocks and queries that see nothing; large scores; many."""
    draw = Draw(rng)
    scale = rng.choice((0.25, 0.5, 0.75))
    sizes = rng.sample(range(2, 9), 4)
    some = draw.given(sizes, scale)
    return [
        draw.case("1 block", draw.masked(draw.given(sizes[:1], scale))),
        draw.case(f"{len(sizes)} blocks, every key is seen", some),
        draw.case("each query sees some keys of every block", draw.masked(some)),
        draw.case("blocks of which a query sees nothing", draw.masked(some, gaps=True)),
        draw.case("2 queries that see nothing", draw.masked(some, gaps=True, blind=2)),
        draw.case("scores around 10,000 and -10,000 in float32", draw.masked(draw.far())),
        draw.case("hidden keys that score 10,000 more", draw.with_hidden_keys()),
        draw.case("32 blocks", draw.masked(draw.many(scale))),
    ]


class Draw:
    """Random inputs, one after the other."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def case(self, label: str, given: Given) -> Case:
        """The case of these inputs."""
        return Case(label, ((given.q, [list(each) for each in given.blocks], given.scale),), (0.0,))

    def given(self, sizes: Sequence[int], scale: float) -> Given:
        """Blocks of these sizes; scores of a few units, so that all weights count."""
        num_queries, num_features = self._rng.randrange(9, 14), self._rng.choice(_NUMBERS)
        q = 1.5 * self._normal(num_queries, num_features)
        return Given(q, [self._block(num_queries, size, num_features) for size in sizes], scale)

    def many(self, scale: float) -> Given:
        """32 blocks of 16 keys, and queries enough that scores take more than all else."""
        num_queries, num_features = 24, self._rng.choice(_NUMBERS)
        blocks = [self._block(num_queries, 16, num_features) for _ in range(32)]
        return Given(self._normal(num_queries, num_features), blocks, scale)

    def far(self) -> Given:
        """Whole numbers, whose scores are exact; of each query they lie around another number.

        Those of blocks 2 and 3 are 200 further out than of blocks 0 and 1: for a query with
        positive scores the maximum rises by 200, for one with negative ones it falls behind.
        Of all keys feature 1 is 0, and queries have one number there: it is for hidden keys.
        """
        num_features, scale = self._rng.choice(_NUMBERS), self._rng.choice((0.25, 0.5))
        levels = [_FAR, -_FAR, _FAR / 2, 0.0] * 3
        self._rng.shuffle(levels)
        q = self._whole(len(levels), num_features, largest=3)
        q[:, 0], q[:, 1] = torch.tensor(levels) / 100 / scale, 100 / scale
        blocks = []
        for distance in (100, 100, 102, 102):
            k = self._whole(self._rng.randrange(3, 6), num_features, largest=2)
            k[:, 0], k[:, 1] = distance, 0
            v = self._normal(len(k), num_features).float()
            blocks.append((k, v, torch.ones(len(q), len(k), dtype=torch.bool)))
        return Given(q, blocks, scale)

    def with_hidden_keys(self) -> Given:
        """As far(), with one more key in each block, which none sees and all score 10,000 higher.

        In float64, where a factor that should be 0 cannot pass for a rounding.
        """
        far, blocks = self.masked(self.far()), []
        for k, v, mask in far.blocks:
            hidden = k[:1].clone()
            hidden[:, 1] = _FAR / 100
            k, v = torch.cat([k, hidden]), torch.cat([v, -v[:1]])
            mask = torch.cat([mask, mask.new_zeros(len(mask), 1)], 1)
            order = self._rng.sample(range(len(k)), len(k))
            blocks.append((k[order].double(), v[order].double(), mask[:, order]))
        return Given(far.q.double(), blocks, far.scale)

    def masked(self, given: Given, *, gaps: bool = False, blind: int = 0) -> Given:
        """The same with masks at random; each query sees a key in each block.

        gaps: about half of all blocks are dark for a query, the first one for every other query.
        blind: so many queries see nothing at all.
        """
        num_queries = len(given.q)
        dark = torch.zeros(num_queries, len(given.blocks), dtype=torch.bool)
        if gaps:
            dark = self._uniform(num_queries, len(given.blocks)) < 0.4
            dark[::2, 0], dark[1::2, 0] = True, False
            dark[:, -1] &= ~dark.all(1)
        if blind:
            dark[torch.tensor(self._rng.sample(range(num_queries), blind))] = True
        blocks = []
        for number, (k, v, _) in enumerate(given.blocks):
            mask = self._uniform(num_queries, len(k)) < 0.6
            mask[torch.arange(num_queries), torch.arange(num_queries) % len(k)] = True
            blocks.append((k, v, mask & ~dark[:, number : number + 1]))
        return Given(given.q, blocks, given.scale)

    def _block(self, num_queries: int, num_keys: int, num_features: int) -> Block:
        k, v = self._normal(num_keys, num_features), self._normal(num_keys, num_features)
        return k, v, torch.ones(num_queries, num_keys, dtype=torch.bool)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator)

    def _whole(self, *shape: int, largest: int) -> Tensor:
        return torch.randint(-largest, largest + 1, shape, generator=self._generator).float()
