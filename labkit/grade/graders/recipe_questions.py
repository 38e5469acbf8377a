"""Recipes of training for bytes_per_parameter, by the dtypes of what is kept."""

import random
from dataclasses import asdict, dataclass
from typing import Any

import torch

from labkit.calc import Recipe
from labkit.grade.answers import Question

_FULL, _HALVES, _BYTES = "float32", ("bfloat16", "float16"), ("float8_e4m3fn", "int8")
FUNCTIONS = ("bytes_per_parameter", "sharded_from")


@dataclass(frozen=True)
class Kept:
    """A recipe by its dtypes, as in the exercise."""

    name: str
    parameters: str
    gradients: str
    master: str | None
    moments: tuple[str, ...]
    casts: str | None = None

    @property
    def as_dict(self) -> dict[str, Any]:
        """What the learner's functions are given."""
        given = asdict(self)
        del given["name"]
        return {**given, "moments": list(self.moments)}

    @property
    def recipe(self) -> Recipe:
        """The same in bytes."""
        return Recipe(
            name=self.name,
            parameter_bytes=itemsize(self.parameters),
            gradient_bytes=itemsize(self.gradients),
            master_bytes=itemsize(self.master),
            moment_bytes=tuple(map(itemsize, self.moments)),
            cast_bytes=itemsize(self.casts),
        )


def itemsize(dtype: str | None) -> int:
    """Bytes of a number; 0 of one that there is not."""
    if dtype is None:
        return 0
    size: int = getattr(torch, dtype).itemsize
    return size


def draw(rng: random.Random) -> list[Question[Kept]]:
    """The recipes that people mean when they say 12, 16, 18 or 20; then others."""
    kept = [*_famous(rng), *(_any(rng) for _ in range(11))]
    # Both functions get the same dict, as they would from whoever has a recipe.
    dicts = [each.as_dict for each in kept]
    return [
        Question(function, (given,), each.name, each)
        for function in FUNCTIONS
        for each, given in zip(kept, dicts, strict=True)
    ]


def _famous(rng: random.Random) -> list[Kept]:
    half = rng.choice(_HALVES)
    two = (_FULL, _FULL)
    return [
        Kept("ZeRO's paper, with Adam", half, half, _FULL, two),
        Kept("Megatron-LM, with Adam", half, _FULL, _FULL, two),
        Kept("float32 and Adam", _FULL, _FULL, None, two),
        Kept("autocast and Adam", _FULL, _FULL, None, two, casts=half),
        Kept("16 bits throughout", half, half, None, (half, half)),
        Kept("momentum", half, half, _FULL, (_FULL,)),
        Kept("plain SGD", _FULL, _FULL, None, ()),
        Kept("plain SGD in 16 bits, with a master copy", half, half, _FULL, ()),
        Kept("8-bit moments", half, half, None, (rng.choice(_BYTES),) * 2),
    ]


def _any(rng: random.Random) -> Kept:
    """Moments that differ, a master in 16 bits, gradients larger or smaller than parameters."""
    half = rng.choice(_HALVES)
    parameters = rng.choice((half, _FULL, _BYTES[0]))
    moments = [rng.choice((_FULL, half, rng.choice(_BYTES))) for _ in range(rng.randrange(4))]
    return Kept(
        "a recipe of dtypes drawn by chance",
        parameters,
        rng.choice((parameters, half, _FULL)),
        rng.choice((None, half, _FULL)) if parameters != _FULL else None,
        tuple(moments),
        casts=rng.choice((None, half)) if parameters == _FULL else None,
    )
