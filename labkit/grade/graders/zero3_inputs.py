"""Units for zero3_unit, drawn at random, and the gradients that their shards should get."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from labkit.grade.evidence import Case
from labkit.grade.graders.shard_wire import shard_numel

_MAX_DELAY_S = 0.002


def unit_forward(weights: Tensor, x: Tensor) -> Tensor:
    """tanh(linear(x)): the weights are a matrix and a bias, flat."""
    width = x.shape[-1]
    num_out = weights.numel() // (width + 1)
    matrix, bias = weights.split([num_out * width, num_out])
    return torch.tanh(linear(x, matrix.view(num_out, width), bias))


def unit_backward(weights: Tensor, x: Tensor, y_gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weights; forward is computed again."""
    weights, x = (each.detach().requires_grad_() for each in (weights, x))
    with torch.enable_grad():
        y = unit_forward(weights, x)
    x_gradient, of_weights = torch.autograd.grad(y, (x, weights), y_gradient)
    return x_gradient, of_weights


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have."""

    weights: list[Tensor]
    """By unit, flat and whole."""
    batches: list[tuple[Tensor, Tensor]]
    """By rank: x, and the target of the loss."""

    @property
    def shard_numels(self) -> list[int]:
        """By unit."""
        return [shard_numel(each.numel(), len(self.batches)) for each in self.weights]

    def gradients(self, rank: int) -> list[Tensor]:
        """Of all weights, by unit, from one rank's batch: the serial oracle."""
        x, target = self.batches[rank]
        inputs = []
        for weights in self.weights:
            inputs.append(x)
            x = unit_forward(weights, x)
        gradient, found = loss_gradient(x, target), []
        for weights, x in zip(reversed(self.weights), reversed(inputs), strict=True):
            gradient, of_weights = unit_backward(weights, x, gradient)
            found.append(of_weights)
        return found[::-1]

    def shards(self, of_units: Sequence[Tensor], rank: int) -> list[Tensor]:
        """A rank's segments of tensors like the weights."""
        n = len(self.batches)
        return [pad(x, (0, -x.numel() % n)).tensor_split(n)[rank] for x in of_units]


def loss_gradient(y: Tensor, target: Tensor) -> Tensor:
    """Of the mean of squared errors."""
    return 2 * (y - target) / y.numel()


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    numels = case.arguments[0][1]
    shards = [arguments[0] for arguments in case.arguments]
    whole = [torch.cat(its)[:numel] for its, numel in zip(zip(*shards), numels, strict=True)]
    return Given(whole, [(x, target) for _, _, x, target in case.arguments])


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Several units, many, a late rank, a single one; in the last, a message is changed."""
    n = world_size
    several, many, one = (
        _case(number, n, rng) for number in (rng.randrange(5, 7), rng.randrange(8, 10), 1)
    )
    late = rng.randrange(n)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    cases = [several, replace(many, delays_s=delays_s), one]
    return cases if n == 1 else [*cases, replace(several, altered=(rng.randrange(n), 1))]


def _case(num_units: int, world_size: int, rng: random.Random) -> Case:
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    # Neighbours differ in size, so that what belongs to another unit does not fit; and weights are
    # many more than the numbers that go through.
    widths = [rng.randrange(24, 34)]
    while len(widths) <= num_units:
        widths.append(rng.choice([w for w in range(24, 34) if w not in widths]))
    weights = [
        normal(num_out * (num_in + 1)) / num_in**0.5
        for num_in, num_out in zip(widths, widths[1:], strict=False)
    ]
    numels, examples = [each.numel() for each in weights], 2
    batches = [
        (normal(examples, widths[0]), normal(examples, widths[-1])) for _ in range(world_size)
    ]
    given = Given(weights, batches)
    arguments = tuple(
        ([shard.clone() for shard in given.shards(weights, rank)], numels, *batches[rank])
        for rank in range(world_size)
    )
    label = "1 unit" if num_units == 1 else f"{num_units} units"
    return Case(label, arguments, (0.0,) * world_size)
