"""Mistakes in scaling gradients whose norm is right, by the gradients that are left."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.grade.graders.norm_inputs import Given, squared
from labkit.grade.graders.norm_theories import own_norms

# Of a product rounded to the dtype, and of a factor that was worked out in it.
_RTOL = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Scaling(NamedTuple):
    """A name for it, and what is left of a gradient, from its rank and number."""

    name: str
    explanation: str
    left: Callable[[int, int], Tensor]
    hint: int = 2


def gradients_of(given: Given, rank: int) -> list[Tensor]:
    """Those that there are, before."""
    return [each.gradient for each in given.held[rank] if each.gradient is not None]


def right_factor(given: Given) -> float:
    """What all gradients are multiplied by."""
    norm = given.norm()
    return given.max_norm / norm if norm > given.max_norm else 1.0


def is_close(got: Tensor, expected: Tensor) -> bool:
    """Whether it is right but for rounding in its dtype; `expected` in float64."""
    if got.shape != expected.shape:
        return False
    return torch.allclose(got.double(), expected, rtol=_RTOL[got.dtype], atol=1e-38)


def right(given: Given, rank: int, number: int) -> Tensor:
    """In float64."""
    return gradients_of(given, rank)[number].double() * right_factor(given)


def scalings(given: Given) -> Iterator[Scaling]:
    """In the order in which they are tried."""
    yield Scaling(
        "does not clip",
        "the norm is right, and the gradients are as they were: multiply each by max_norm / norm, "
        "in place",
        _by(given, lambda rank, number: 1.0),
    )
    yield Scaling(
        "scales small gradients up",
        "clipping is a limit: where the norm is below max_norm, nothing changes. min(1, max_norm / "
        "norm) is the factor",
        _by(given, lambda rank, number: given.max_norm / given.norm()),
        3,
    )
    yield from _of_one_rank(given)
    yield from _of_other_factors(given)
    yield from _of_single_gradients(given)


def _by(given: Given, factor: Callable[[int, int], float]) -> Callable[[int, int], Tensor]:
    """What a factor, by rank and number, leaves of a gradient."""
    return lambda rank, number: gradients_of(given, rank)[number].double() * factor(rank, number)


def _limited(given: Given, norm: float) -> float:
    """The factor that brings a norm down to the limit."""
    return min(1.0, given.max_norm / norm) if norm else 1.0


def _of_one_rank(given: Given) -> Iterator[Scaling]:
    """Ranks scale differently."""
    shares = [
        [given.counts(rank, each) for each in its if each.gradient is not None]
        for rank, its in enumerate(given.held)
    ]
    factor = right_factor(given)
    for norms in (own_norms(given), own_norms(given, given.counts)):
        factors = [_limited(given, norm) for norm in norms]
        yield Scaling(
            "clips by the norm of one rank's gradients",
            "the norm that is returned is right, and the factor comes of this rank's own, before "
            "the all-reduce: ranks then scale by different factors, and copies drift apart",
            _by(given, lambda rank, number, factors=factors: factors[rank]),  # type: ignore[misc]
            3,
        )
    yield Scaling(
        "scales only what this rank counts",
        "that a rank leaves a copy out of the sum does not mean that it leaves it unclipped: the "
        "copies on other ranks are scaled, and the two drift apart",
        _by(given, lambda rank, number: factor if shares[rank][number] else 1.0),
    )


def _of_other_factors(given: Given) -> Iterator[Scaling]:
    """One factor for all, and not the right one."""
    norm, factor = given.norm(), right_factor(given)
    yield Scaling(
        "adds something to the norm",
        "1e-6 beside the norm is there against a division by 0, which cannot come up where the "
        "norm is larger than max_norm; of small gradients it makes much smaller ones",
        _by(given, lambda rank, number: _limited(given, norm + 1e-6)),
    )
    yield Scaling(
        "clips twice",
        "the factor is max_norm / norm, once: in the group's loop and in the parameter's it is "
        "squared",
        _by(given, lambda rank, number: factor**2),
    )
    yield Scaling(
        "scales to a norm of 1",
        "gradients / norm have norm 1; the limit is max_norm",
        _by(given, lambda rank, number: 1 / norm if norm > given.max_norm else 1.0),
    )


def _of_single_gradients(given: Given) -> Iterator[Scaling]:
    """Each gradient, or each number, by itself."""
    most = given.max_norm

    def norm_of(rank: int, number: int) -> float:
        return squared(gradients_of(given, rank)[number]) ** 0.5

    yield Scaling(
        "clips each parameter by its own norm",
        "one factor for all keeps the direction of the step: that is what the global norm is for",
        _by(given, lambda rank, number: _limited(given, norm_of(rank, number))),
    )
    yield Scaling(
        "clips numbers and not the norm",
        "to limit each number is another method, which turns the gradient; here all of them are "
        "multiplied by one factor",
        lambda rank, number: gradients_of(given, rank)[number].double().clamp(-most, most),
    )
