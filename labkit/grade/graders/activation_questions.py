"""Layers for activation_bytes: every way to keep less, alone and with the others."""

import itertools
import random
from dataclasses import astuple, dataclass
from typing import Any

from labkit import calc
from labkit.grade.answers import Question


@dataclass(frozen=True)
class Layer:
    """The arguments of one call, in their order."""

    s: int
    b: int
    h: int
    a: int
    t: int
    sequence_parallel: bool
    recompute: str
    flash: bool

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Plain data."""
        return astuple(self)

    def __str__(self) -> str:
        return (
            f"s={self.s}, b={self.b}, h={self.h}, a={self.a}, t={self.t}, "
            f"sequence_parallel={self.sequence_parallel}, recompute={self.recompute!r}, "
            f"flash={self.flash}"
        )


def right(layer: Layer) -> float:
    """By the calculator, for a model of one layer."""
    config = calc.ModelConfig(layers=1, hidden=layer.h, heads=layer.a, vocab=1, context=layer.s)
    return float(
        calc.activation_bytes(
            config,
            layer.b,
            layer.t,
            layer.sequence_parallel,
            recompute=layer.recompute,
            flash=layer.flash,
        )
    )


def draw(rng: random.Random) -> list[Question[Layer]]:
    """All combinations, the plain ones first, on layers with many scores and with few."""
    parallel = [(1, False), (rng.choice((2, 4)), False), (rng.choice((2, 4, 8)), True)]
    ways = itertools.product(("none", "selective", "full"), (False, True), parallel)
    layers = [
        _layer(rng, t, is_split, recompute, flash)
        for recompute, flash, (t, is_split) in sorted(ways, key=_plainness)
        for _ in range(2)
    ]
    layers.append(_layer(rng, 1, True, "none", False))  # one rank: it changes nothing
    return [Question("activation_bytes", each.arguments, str(each), each) for each in layers]


def _plainness(way: tuple[str, bool, tuple[int, bool]]) -> int:
    recompute, flash, (t, is_split) = way
    return (recompute != "none") + flash + (t > 1) + is_split


def _layer(
    rng: random.Random, t: int, sequence_parallel: bool, recompute: str, flash: bool
) -> Layer:
    """Of a size that models have; ranks divide what they split."""
    a = t * rng.randrange(2, 9)
    return Layer(
        s=t * rng.randrange(100, 1000),
        b=rng.randrange(2, 9),
        h=a * rng.choice((64, 80, 96, 128)),
        a=a,
        t=t,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        flash=flash,
    )
