"""Setups for which_stage_fits, many of which fit, or do not, by a single byte."""

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from labkit import calc
from labkit.grade.answers import Question

LEVELS = (0, 1, 2, 3)
TERMS = ("optimizer", "gradients", "parameters", "activations", "reserve")
_RECIPES = ((2, 2, 12), (2, 4, 12), (4, 4, 8), (2, 2, 4), (2, 2, 2), (4, 4, 4), (1, 4, 8))
_DEVICES_GIB = (24, 40, 80, 141)
_RANKS = (4, 8, 16, 64, 512)
_NUM_SETUPS = 120


@dataclass(frozen=True)
class Setup:
    """As in the exercise."""

    num_params: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    dp: int
    activation_bytes: int
    reserve_gb: float
    memory_gib: float

    @property
    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def memory_bytes(self) -> float:
        """Of a GPU."""
        return self.memory_gib * calc.GiB

    def terms(self, level: int) -> dict[str, float]:
        """What one rank holds at a level, by the calculator."""
        recipe = calc.Recipe(
            name="",
            parameter_bytes=self.parameter_bytes,
            gradient_bytes=self.gradient_bytes,
            moment_bytes=(self.optimizer_bytes,),
        )
        states = calc.model_state_bytes(self.num_params, recipe, level, self.dp)
        return {
            "optimizer": float(states["moments"]),
            "gradients": float(states["gradients"]),
            "parameters": float(states["parameters"]),
            "activations": float(self.activation_bytes),
            "reserve": self.reserve_gb * calc.GB,
        }

    def __str__(self) -> str:
        sizes = (self.parameter_bytes, self.gradient_bytes, self.optimizer_bytes)
        return (
            f"{self.num_params:,} parameters of {' + '.join(map(str, sizes))} bytes, "
            f"{self.dp} ranks, {self.activation_bytes / 1e9:.3g} GB of activations, "
            f"{self.reserve_gb:g} GB in reserve, {self.memory_gib:.10g} GiB"
        )


def right(setup: Setup) -> tuple[int | None, list[str]]:
    """The lowest level, and the largest term of each below it."""
    largest: list[str] = []
    for level in LEVELS:
        terms = setup.terms(level)
        if sum(terms.values()) <= setup.memory_bytes:
            return level, largest
        largest.append(max(TERMS, key=terms.__getitem__))
    return None, largest


def is_close_call(setup: Setup) -> bool:
    """Whether some level needs just the memory that there is, or a byte more or less."""
    needed = [sum(setup.terms(level).values()) for level in LEVELS]
    return any(abs(each - setup.memory_bytes) <= 1 for each in needed)


def draw(rng: random.Random) -> list[Question[Setup]]:
    """GPUs that exist, and GPUs with just the memory that some level needs, or a byte less."""
    setups: list[Setup] = []
    for _ in range(_NUM_SETUPS // 5):
        setups += [
            _any(rng),
            _at_the_limit(rng, lambda setup: -rng.choice((0.0, 1.0))),
            # GB and GiB are 7% apart: of the reserve, and of the memory.
            _at_the_limit(rng, lambda setup: setup.reserve_gb * calc.GB * rng.uniform(0.01, 0.05)),
            _at_the_limit(rng, lambda setup: setup.memory_bytes * rng.uniform(0.03, 0.05)),
            # Without activations it would fit, and perhaps not with a share of them.
            _at_the_limit(rng, lambda setup: -setup.activation_bytes * rng.uniform(0.8, 1)),
        ]
    return [Question("which_stage_fits", (each.as_dict,), str(each), each) for each in setups]


def _at_the_limit(rng: random.Random, spare: Callable[[Setup], float]) -> Setup:
    """A GPU that has so many bytes more than some level needs."""
    setup = _any(rng)
    needed = int(sum(setup.terms(rng.choice(LEVELS)).values()))
    memory_bytes = needed + int(spare(setup))
    return replace(setup, memory_gib=memory_bytes / calc.GiB)  # exact: GiB is a power of two


def _any(rng: random.Random) -> Setup:
    """Of a size that may fit at any level, or at none."""
    parameter_bytes, gradient_bytes, optimizer_bytes = rng.choice(_RECIPES)
    memory_gib = rng.choice(_DEVICES_GIB)
    whole_bytes = memory_gib * calc.GiB * 10 ** rng.uniform(-0.6, 1.6)
    return Setup(
        num_params=int(whole_bytes / (parameter_bytes + gradient_bytes + optimizer_bytes)),
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
        optimizer_bytes=optimizer_bytes,
        dp=rng.choice(_RANKS),
        activation_bytes=int(memory_gib * calc.GiB * rng.uniform(0.03, 0.6)),
        reserve_gb=rng.randrange(1, memory_gib // 4) / 2,
        memory_gib=memory_gib,
    )
