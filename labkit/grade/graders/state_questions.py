"""Models, recipes, levels and ranks for model_state_bytes, and what is right for them."""

import random
from dataclasses import dataclass, replace
from typing import Any

from labkit import calc
from labkit.grade.answers import Question

_LEVELS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Asked:
    """The arguments of one call."""

    num_params: int
    recipe: calc.Recipe
    zero: int
    dp: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Plain data."""
        return self.num_params, plain_recipe(self.recipe), self.zero, self.dp

    def __str__(self) -> str:
        sizes = (self.recipe.parameter_bytes, self.recipe.gradient_bytes, self.recipe.master_bytes)
        return (
            f"{self.num_params:,} parameters, {' + '.join(map(str, sizes))} + "
            f"{list(self.recipe.moment_bytes)} bytes, zero {self.zero}, {self.dp} ranks"
        )


def plain_recipe(recipe: calc.Recipe) -> dict[str, Any]:
    """As the learner's function gets it."""
    return {
        "parameter_bytes": recipe.parameter_bytes,
        "gradient_bytes": recipe.gradient_bytes,
        "master_bytes": recipe.master_bytes,
        "moment_bytes": list(recipe.moment_bytes),
    }


def right(asked: Asked) -> int:
    """By the calculator."""
    return int(calc.model_state_bytes(asked.num_params, asked.recipe, asked.zero, asked.dp))


def draw(rng: random.Random) -> list[Question[Asked]]:
    """Every level of each model; sizes that divide and others, one rank, more than parameters."""
    billions = rng.randrange(10**9, 10**11)
    cases = [
        (calc.RECIPES["zero_paper"], 64 * rng.randrange(10**6, 10**8), 64),
        (calc.RECIPES["megatron_bf16"], 1 + 48 * rng.randrange(10**7), 48),
        (calc.RECIPES["fp32"], billions, rng.choice((7, 24, 1000))),
        (calc.RECIPES["sgd"], rng.randrange(100, 1000), rng.randrange(3, 9)),
        (_with_a_master_of_its_size(rng), billions | 1, rng.choice((8, 64, 512))),
        (any_recipe(rng), rng.randrange(10**5, 10**6), 1),
        (any_recipe(rng), 5, 8),
        *((any_recipe(rng), rng.randrange(10**6, 10**10), rng.randrange(2, 99)) for _ in range(4)),
    ]
    asked = [Asked(num, recipe, zero, dp) for recipe, num, dp in cases for zero in _LEVELS]
    return [Question("model_state_bytes", each.arguments, str(each), each) for each in asked]


def _with_a_master_of_its_size(rng: random.Random) -> calc.Recipe:
    """Parameters in float32, and a copy of them for the optimizer as well."""
    return replace(any_recipe(rng), parameter_bytes=4, master_bytes=4)


def any_recipe(rng: random.Random) -> calc.Recipe:
    """With parts that are all of different sizes, now and then."""
    return calc.Recipe(
        name="drawn by chance",
        parameter_bytes=rng.choice((1, 2, 4)),
        gradient_bytes=rng.choice((1, 2, 4)),
        master_bytes=rng.choice((0, 2, 4)),
        moment_bytes=tuple(rng.choice((1, 2, 4)) for _ in range(rng.randrange(1, 4))),
    )
