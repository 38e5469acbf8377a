"""A deep stack of layers for zero2_gradients, its microbatches, and the gradients of each.

Layers are wide and examples few: nearly all the memory of a backward pass is gradients.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from labkit.grade.evidence import Case
from labkit.grade.graders.gradient_modules import module_of
from labkit.grade.graders.shard_wire import shard_numel

NUM_LAYERS = 10
LEAVES = ("weight", "bias", "scale")
# Odd, and not 1 modulo 3: no number of ranks from 2 to 4 divides a layer's size.
_WIDTHS = (89, 93, 95, 99)
_MAX_DELAY_S = 0.002


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have."""

    parameters: dict[str, Tensor]
    buckets: list[list[str]]
    """Names, in the order in which backward finishes buckets."""
    microbatches: list[list[tuple[Tensor, Tensor]]]
    """By rank."""

    @property
    def num_microbatches(self) -> int:
        """Of each rank."""
        return len(self.microbatches[0])

    @property
    def bucket_numels(self) -> list[int]:
        """Numbers in each bucket."""
        return [sum(self.parameters[name].numel() for name in each) for each in self.buckets]

    @property
    def segment_numels(self) -> list[int]:
        """Numbers in one rank's segment of each bucket."""
        return [shard_numel(numel, len(self.microbatches)) for numel in self.bucket_numels]

    def gradients(self) -> list[list[list[Tensor]]]:
        """Of each rank and microbatch, by bucket: flat, with zeros until n divides it."""
        return [[self._of(each) for each in its] for its in self.microbatches]

    def _of(self, microbatch: tuple[Tensor, Tensor]) -> list[Tensor]:
        module = module_of(self.parameters)
        mean_loss(module, microbatch).backward()
        n, flat = len(self.microbatches), []
        for bucket in self.buckets:
            its = [gradient_of(module.get_parameter(name)).flatten() for name in bucket]
            flat.append(torch.cat(its))
        return [pad(each, (0, -each.numel() % n)) for each in flat]


def gradient_of(parameter: Tensor) -> Tensor:
    """It is there."""
    assert parameter.grad is not None
    return parameter.grad


def budget_bytes(bucket_numels: Sequence[int], num_ranks: int) -> int:
    """Two buckets, all segments, a segment that arrives and its sum; of float64."""
    segments = [shard_numel(numel, num_ranks) for numel in bucket_numels]
    return 8 * (2 * num_ranks * max(segments) + sum(segments) + 2 * max(segments))


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    parameters, buckets, _ = case.arguments[0]
    return Given(parameters, buckets, [microbatches for _, _, microbatches in case.arguments])


def mean_loss(module: nn.Module, microbatch: tuple[Tensor, Tensor]) -> Tensor:
    """Squared errors of the stack."""
    x, y = microbatch
    for index in range(NUM_LAYERS):
        weight, bias, scale = (module.get_parameter(f"{index}.{leaf}") for leaf in LEAVES)
        x = torch.tanh(linear(x, weight, bias)) * scale
    return ((x - y) ** 2).mean()


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Several microbatches, one, a late rank; in the last, what a rank hands over is changed."""
    n = world_size
    # Not as many as ranks: a division by the one shall not look like a division by the other.
    several = _case(rng.choice([k for k in (2, 3, 5) if k not in (n, n * n)]), n, rng)
    late = rng.randrange(n)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    cases = [several, replace(_case(1, n, rng), delays_s=delays_s)]
    return cases if n == 1 else [*cases, replace(cases[0], altered=(rng.randrange(n), 1))]


def _case(num_microbatches: int, world_size: int, rng: random.Random) -> Case:
    width = rng.choice(_WIDTHS)
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    shapes: Sequence[tuple[int, ...]] = ((width, width), (width,), ())
    parameters = {
        f"{index}.{leaf}": normal(*shape) / (width**0.5 if len(shape) == 2 else 1)
        for index in range(NUM_LAYERS)
        for leaf, shape in zip(LEAVES, shapes, strict=True)
    }
    # Within a bucket they lie in an order of its own.
    leaves = rng.sample(LEAVES, len(LEAVES))
    buckets = [[f"{index}.{leaf}" for leaf in leaves] for index in reversed(range(NUM_LAYERS))]
    arguments = tuple(
        (
            parameters,
            buckets,
            [(normal(1, width), normal(1, width)) for _ in range(num_microbatches)],
        )
        for _ in range(world_size)
    )
    what = "1 microbatch" if num_microbatches == 1 else f"{num_microbatches} microbatches"
    return Case(f"{NUM_LAYERS} buckets, {what}", arguments, (0.0,) * world_size)
