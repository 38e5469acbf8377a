"""Partial sums, residuals and gradients that come in, for sequence_parallel_norm.

Shapes: N rows of D features; rank r has the r-th of n blocks of k = ceil(N / n) rows.
"""

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from labkit.grade.evidence import Case
from labkit.grade.graders.shard_wire import shard_numel

EPS = 1e-5
_MAX_DELAY_S = 0.002


@dataclass(frozen=True)
class Step:
    """One call, of all ranks together."""

    z: list[Tensor]
    """By rank, z_ND."""
    r: list[Tensor]
    """By rank, r_nD."""
    residual_gradients: list[Tensor]
    """By rank: what comes in for the residual that it returns, (n_rows, D)."""
    x_gradients: list[Tensor]
    """By rank: what comes in for its x_ND, (N, D): a part of the gradient of x."""

    @property
    def num_ranks(self) -> int:
        """n."""
        return len(self.z)

    @property
    def num_rows(self) -> int:
        """N, of all ranks."""
        return len(self.z[0])

    @property
    def rows_per_rank(self) -> int:
        """k, of which the last ranks have fewer."""
        return shard_numel(self.num_rows, self.num_ranks)

    def own(self, rank: int, x_ND: Tensor) -> Tensor:
        """The rank's rows of it."""
        return x_ND[rank * self.rows_per_rank : (rank + 1) * self.rows_per_rank]

    @property
    def sum_ND(self) -> Tensor:
        """What the row layer's output is."""
        return torch.stack(self.z).sum(0)

    @property
    def r_ND(self) -> Tensor:
        """The residual of all rows, before."""
        return torch.cat(self.r)

    @property
    def x_gradient_ND(self) -> Tensor:
        """Of x, whole."""
        return torch.stack(self.x_gradients).sum(0)


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have together."""

    weight_D: Tensor
    steps: list[Step]

    @property
    def is_even(self) -> bool:
        """Whether the ranks have equally many rows."""
        return all(step.num_rows % step.num_ranks == 0 for step in self.steps)


def norm(h_ND: Tensor, weight_D: Tensor) -> Tensor:
    """LayerNorm of each row, without bias."""
    return layer_norm(h_ND, weight_D.shape, weight_D, eps=EPS)


def norm_backward(h_ND: Tensor, weight_D: Tensor, gradient_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of h_ND and of the weight."""
    h_ND, weight_D = h_ND.clone().requires_grad_(), weight_D.clone().requires_grad_()
    found = torch.autograd.grad(norm(h_ND, weight_D), (h_ND, weight_D), gradient_ND)
    return found[0], found[1]


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    of_ranks = [steps for _, steps in case.arguments]
    steps = [
        Step(*(list(each) for each in zip(*of_step, strict=True)))
        for of_step in zip(*of_ranks, strict=True)
    ]
    return Given(case.arguments[0][0], steps)


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Rows that n divides, two steps with rows that it does not, a late rank and one without any
    row; in the last ones, what a rank hands over is changed, forward and backward."""
    n = world_size
    even = _case(n * rng.randrange(3, 7), 1, n, rng)
    by = rng.randrange(1, n) if n > 1 else 0
    uneven = _case(n * rng.randrange(3, 6) + by, 2, n, rng)
    late = rng.randrange(n)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    few = replace(_case(max(1, n - 1), 1, n, rng), delays_s=delays_s)
    cases = [even, uneven, few]
    # Two collectives forward and two backward; a third one there may be of the weight.
    changed = [replace(even, altered=(rng.randrange(n), number)) for number in (1, 2, 3, 4)]
    return cases if n == 1 else [*cases, *changed]


def _case(num_rows: int, num_steps: int, world_size: int, rng: random.Random) -> Case:
    num_features = rng.randrange(6, 12)
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, num_features, generator=generator, dtype=torch.float64)

    ranks = range(world_size)
    k = shard_numel(num_rows, world_size)
    own = [max(0, min(k, num_rows - rank * k)) for rank in ranks]
    weight_D = 1 + normal(1)[0] / 4
    # Some variance as small as eps, so that it matters what eps is and where it is added.
    small = 10 ** -torch.linspace(0, 2, num_rows, dtype=torch.float64)[:, None]
    steps: list[list[tuple[Tensor, ...]]] = [[] for _ in ranks]
    for _ in range(num_steps):
        scale_ND = small[torch.randperm(num_rows, generator=generator)]
        for rank in ranks:
            z_ND, r_nD = normal(num_rows) * scale_ND, normal(own[rank])
            r_nD *= scale_ND[rank * k : rank * k + own[rank]]
            steps[rank].append((z_ND, r_nD, normal(own[rank]), normal(num_rows)))
    what = f"{num_rows} row{'s' * (num_rows > 1)}{', 2 steps' * (num_steps == 2)}"
    arguments = tuple((weight_D, steps[rank]) for rank in ranks)
    return Case(what, arguments, (0.0,) * world_size)
