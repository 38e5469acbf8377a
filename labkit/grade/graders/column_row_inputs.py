"""An MLP for column_row_mlp, drawn at random, cut into shares; and the oracle of one process."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from labkit.grade.evidence import Case

NAMES = ("x_BTD", "up_fD", "up_f", "down_Df", "down_D")
"""Of what the code under test is given, in order."""
_MAX_DELAY_S = 0.002


@dataclass(frozen=True)
class Whole:
    """What comes of an MLP in one process: the output, and gradients in the order of NAMES."""

    y: Tensor
    gradients: list[Tensor]


@dataclass(frozen=True)
class Given:
    """The whole MLP, and what comes in."""

    x: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    output_gradient: Tensor
    """Of y, and of x where it goes past the MLP: the caller adds the two."""
    shares: list[list[Tensor]]
    """By rank, in the order of NAMES."""

    @property
    def num_features(self) -> int:
        """F."""
        return len(self.up)

    @property
    def whole(self) -> list[Tensor]:
        """In the order of NAMES, before they are cut."""
        return [self.x, self.up, self.up_bias, self.down, self.down_bias]

    def expected(self) -> Whole:
        """The oracle; x's gradient is the MLP's alone."""
        return differentiated(mlp, self.whole, self.output_gradient)

    def of_share(self, rank: int) -> Whole:
        """The same for this rank's features alone, without the bias of down."""
        leaves = [*self.shares[rank][:4], torch.zeros_like(self.down_bias)]
        return differentiated(mlp, leaves, self.output_gradient)

    def share_of(self, whole: Sequence[Tensor], rank: int) -> list[Tensor]:
        """From the whole MLP's five tensors, or their gradients, to those of a rank."""
        x, up, up_bias, down, down_bias = whole
        begin = sum(len(share[1]) for share in self.shares[:rank])
        own = slice(begin, begin + len(self.shares[rank][1]))
        return [x, up[own], up_bias[own], down[:, own], down_bias]


def mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """down(gelu(up(x)))"""
    return linear(gelu(linear(x, up, up_bias)), down, down_bias)


def differentiated(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], output_gradient: Tensor
) -> Whole:
    """What it returns for copies of the inputs, and their gradients."""
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    y = function(*leaves)
    # Of a number: for a tensor and its gradient torch imports sympy, which takes a second.
    loss = (y * output_gradient).sum()
    gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
    return Whole(y.detach(), list(gradients))


def given_in(case: Case) -> Given:
    """What the grader has drawn, put together again from the shares."""
    shares = [list(each[: len(NAMES)]) for each in case.arguments]
    x, down_bias = shares[0][0], shares[0][4]
    up, up_bias = (torch.cat([share[i] for share in shares]) for i in (1, 2))
    down = torch.cat([share[3] for share in shares], dim=1)
    return Given(x, up, up_bias, down, down_bias, case.arguments[0][len(NAMES)], shares)


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Features that n divides, others, a late rank; then what a rank hands over is changed, forward
    and backward; at last a rank without any feature."""
    n = world_size
    even = _case(n * rng.randrange(4, 8), n, rng)
    # One less than a multiple, and one more: one rank lacks a feature, or only one has another.
    short, over = (_case(n * rng.randrange(4, 8) + by, n, rng) for by in (-1, 1))
    late = rng.randrange(n)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    cases = [even, short, replace(over, delays_s=delays_s)]
    if n > 1:
        cases += [replace(even, altered=(rng.randrange(n), number)) for number in (1, 2)]
    return [*cases, _case(max(1, n - 1), n, rng)]


def _case(num_features: int, world_size: int, rng: random.Random) -> Case:
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    # More tokens than a rank has features, and more of D: what travels is told apart by its size.
    batch, time, width = rng.randrange(2, 4), rng.randrange(5, 8), rng.choice((33, 35, 37))
    x, dy, down_bias = normal(batch, time, width), normal(batch, time, width), normal(width)
    up, up_bias = normal(num_features, width) / width**0.5, normal(num_features)
    down = normal(width, num_features)
    parts = zip(
        up.tensor_split(world_size),
        up_bias.tensor_split(world_size),
        down.tensor_split(world_size, dim=1),
        strict=True,
    )
    arguments = tuple(
        tuple(each.clone() for each in (x, up_fD, up_f, down_Df, down_bias, dy))
        for up_fD, up_f, down_Df in parts
    )
    what = "1 feature" if num_features == 1 else f"{num_features} features"
    return Case(f"x {tuple(x.shape)}, {what}", arguments, (0.0,) * world_size)
