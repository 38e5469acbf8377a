"""Training steps for loss_scaler: losses whose float16 gradients overflow now and then.

The loss is linear in float16 weights, so that backward through it makes slope * scale, rounded to
float16, as it would in a model. Whether that overflows depends on the scale that the code under
test has left behind.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from labkit.grade.evidence import Case, CaseEvidence

Tensor = torch.Tensor
_MAX_DELAY_S = 0.002
_OVERFLOWS = 1e6  # times any scale above 1/16
_NUM_STEPS, _INTERVAL = 9, 3


@dataclass(frozen=True)
class Given:
    """What one rank has in a case."""

    slopes: Tensor
    """(steps, numel): the true gradients."""
    sizes: Sequence[int]
    """How they are cut into gradients; may be empty."""
    scaler: dict[str, Any]

    def gradients(self, step: int, scale: float) -> list[Tensor]:
        """What backward leaves in a step: float16, and scaled."""
        parts = self.slopes[step].split(list(self.sizes)) if self.sizes else ()
        weights = [torch.zeros_like(part).half().requires_grad_() for part in parts]
        if weights:
            losses = [(w.float() * part).sum() for w, part in zip(weights, parts, strict=True)]
            (torch.stack(losses).sum() * scale).backward()
        return [weight.grad for weight in weights if weight.grad is not None]


def given_in(evidence: CaseEvidence) -> list[Given]:
    """By rank."""
    return [Given(*arguments) for arguments in evidence.case.arguments]


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Growth alone, then overflows of every kind; each on all ranks, or on one of them."""
    n, one = world_size, rng.randrange(world_size)
    everyone = range(n)
    # At step 4 or 6 the count is not 2, at which counting a skipped step would look like no fall.
    first, last = rng.choice((1, 2)), 6
    cases = [
        _case(n, rng, "no overflow"),
        _case(
            n,
            rng,
            f"all ranks overflow in steps {first} and {last}, and have a nan in step 4",
            [(rank, first, 0, _OVERFLOWS) for rank in everyone]
            + [(rank, 4, 1, float("nan")) for rank in everyone]
            + [(rank, last, -1, _OVERFLOWS) for rank in everyone],
        ),
        _case(n, rng, f"rank {one} overflows in step 1", [(one, 1, 0, _OVERFLOWS)]),
        _case(n, rng, f"rank {one} has -inf in step 2", [(one, 2, -1, -_OVERFLOWS)]),
        # A scale may fall below 1.
        _case(n, rng, f"rank {one} has a nan in step 2", [(one, 2, 0, float("nan"))], scale=0.5),
        _large_sum(_case(n, rng, "large gradients, no overflow", num_steps=2)),
        _case(n, rng, "a scale that begins too high", scale=2.0**24, num_steps=15),
    ]
    late = tuple(_MAX_DELAY_S * (rank == one) for rank in everyone)
    cases[3] = replace(cases[3], delays_s=late)
    if n > 1:
        other = (one + 1) % n
        name = f"rank {one} has no gradients, rank {other} overflows in step 1"
        alone = _case(n, rng, name, [(other, 1, 0, _OVERFLOWS)], num_steps=3)
        cases.append(_without_gradients(alone, one))
    return cases


def _case(
    n: int,
    rng: random.Random,
    label: str,
    spoilt: Sequence[tuple[int, int, int, float]] = (),
    *,
    scale: float = 2.0**10,
    num_steps: int = _NUM_STEPS,
) -> Case:
    """spoilt: (rank, step, place, slope). Steps count from 0."""
    sizes = [rng.randrange(2, 5) for _ in range(3)]
    slopes = [_slopes(num_steps, sum(sizes), rng) for _ in range(n)]
    for rank, step, place, slope in spoilt:
        slopes[rank][step, place] = slope
    # A run that goes on from a checkpoint has counted some steps already.
    scaler = {"scale": scale, "num_good_steps": rng.choice((0, 1)), "growth_interval": _INTERVAL}
    about = f"{label} (scale {scale:g}, growth_interval {_INTERVAL})"
    return Case(about, tuple((each, sizes, dict(scaler)) for each in slopes), (0.0,) * n)


def _slopes(num_steps: int, numel: int, rng: random.Random) -> Tensor:
    """From 1e-7, which float16 hardly holds, to about 0.1."""
    exponents = [[rng.uniform(-7, -2) for _ in range(numel)] for _ in range(num_steps)]
    slopes = 10.0 ** torch.tensor(exponents, dtype=torch.float32)
    slopes[:, 1] = rng.uniform(0.07, 0.12)
    signs = [[rng.choice((-1.0, 1.0)) for _ in range(numel)] for _ in range(num_steps)]
    return slopes * torch.tensor(signs)


def _large_sum(case: Case) -> Case:
    """Numbers are finite in float16: in step 0 the largest that is, in step 1 many large ones.

    The sum and the norm of the first gradient are not, in step 1.
    """
    arguments = []
    for _, sizes, scaler in case.arguments:
        slopes = torch.full((2, 4 + sizes[0]), 40.0)
        slopes[0] = 2.0**-10
        slopes[0, -1] = torch.finfo(torch.float16).max / scaler["scale"]
        arguments.append((slopes, [4, sizes[0]], {**scaler, "growth_interval": 10}))
    label = case.label.replace(f"growth_interval {_INTERVAL}", "growth_interval 10")
    return replace(case, label=label, arguments=tuple(arguments))


def _without_gradients(case: Case, rank: int) -> Case:
    arguments = list(case.arguments)
    slopes, _, scaler = arguments[rank]
    arguments[rank] = (slopes[:, :0].clone(), [], scaler)
    return replace(case, arguments=tuple(arguments))


def has_rank_without_gradients(case: Case) -> bool:
    """Whether some rank has none."""
    return any(not sizes for _, sizes, _ in case.arguments)
