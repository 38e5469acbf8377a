"""Parameters, gradients and an Adam of segments for zero1_step, and the run on a rank."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labkit.grade.evidence import Case
from labkit.grade.watched_group import WatchedGroup

_MAX_DELAY_S = 0.002
_LR, _BETA_1, _BETA_2 = 0.1, 0.9, 0.99
# Adam divides by the size of the gradient, and hides a factor in it; this much shows one again.
_EPS = 0.1


class Adam:
    """Adam on a flat tensor, which it makes states for in the first step."""

    def __init__(self) -> None:
        self._states: list[Tensor] = []
        self._num_steps = 0

    @property
    def state_bytes(self) -> int:
        """Of both moments."""
        return sum(state.nbytes for state in self._states)

    @torch.no_grad()
    def step(self, weights: Tensor, gradients: Tensor) -> None:
        """Update `weights` in place. ValueError for tensors that do not go together."""
        if weights.shape != gradients.shape:
            raise ValueError(
                f"weights of shape {tuple(weights.shape)} and gradients of shape "
                f"{tuple(gradients.shape)}: optimizer.step takes the same segment of both"
            )
        if not self._states:
            self._states = [torch.zeros_like(weights), torch.zeros_like(weights)]
        mean, square = self._states
        if mean.shape != weights.shape:
            raise ValueError(
                f"the states are those of {mean.numel()} numbers, and now there are "
                f"{weights.numel()}: a rank's segment is the same in every step"
            )
        self._num_steps += 1
        mean.lerp_(gradients, 1 - _BETA_1)
        square.lerp_(gradients**2, 1 - _BETA_2)
        step = mean / (1 - _BETA_1**self._num_steps)
        weights -= _LR * step / ((square / (1 - _BETA_2**self._num_steps)).sqrt() + _EPS)


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have."""

    parameters: Tensor
    gradients: list[list[Tensor]]
    """By rank, then by step."""

    @property
    def num_steps(self) -> int:
        """How often the code under test is called."""
        return len(self.gradients[0])

    def at(self, step: int) -> Tensor:
        """All ranks' gradients of a step, (n, numel)."""
        return torch.stack([each[step] for each in self.gradients])

    def right(self) -> list[Tensor]:
        """The parameters after each step of one process: the oracle."""
        weights, adam, after = self.parameters.clone(), Adam(), []
        for step in range(self.num_steps):
            adam.step(weights, self.at(step).mean(0))
            after.append(weights.clone())
        return after


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    return Given(case.arguments[0][0], [gradients for _, gradients in case.arguments])


def several_steps(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: bytes of the states at the end, and whether the parameters have moved; then
    the parameters after each step."""
    parameters, gradients = arguments
    weights, adam, after = parameters.clone(), Adam(), []
    # The caller's own: layers compute with views of the flat tensor, and do not ask it for others.
    views = weights.view(-1)
    for gradient in gradients:
        function(weights, gradient.clone(), adam, group)
        after.append(views.clone())
    has_moved = weights.data_ptr() != views.data_ptr()
    return [torch.tensor([adam.state_bytes, has_moved]), *after]


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """A size that n divides, one that it does not, fewer numbers than ranks, a late rank."""
    n = world_size
    even = _case(n * rng.randrange(4, 9), n, rng)
    # One less than a multiple, and one more: one rank lacks a number, or nearly a whole segment.
    short, over = (_case(n * rng.randrange(4, 9) + by, n, rng) for by in (-1, 1))
    late = rng.randrange(n)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    few = _case(max(1, n - 1), n, rng)
    cases = [even, short, replace(over, delays_s=delays_s), few]
    return cases if n == 1 else [*cases, replace(even, altered=(rng.randrange(n), 1))]


def _case(numel: int, world_size: int, rng: random.Random) -> Case:
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def normal() -> Tensor:
        return torch.randn(numel, generator=generator, dtype=torch.float64)

    parameters, num_steps = normal(), rng.randrange(2, 4)
    arguments = tuple((parameters, [normal() for _ in range(num_steps)]) for _ in range(world_size))
    what = "1 parameter" if numel == 1 else f"{numel} parameters"
    return Case(f"{what}, {num_steps} steps", arguments, (0.0,) * world_size)
